"""A model file or folder in this process, by its path."""

from __future__ import annotations

from pathlib import Path

from quintet.backends.native.core.loader import Loader
from quintet.backends.native.wire.sources import ModelSource
from quintet.backends.native.worker import load
from quintet.config import KvType, Quantize
from quintet.inputs.tokenizer import Tokenizer


def native_loader(
    path: Path,
    *,
    threads: int,
    context: int | None = None,
    isa: str = "",
    quantize: Quantize = "q8",
    vision: Path | None = None,
    draft: Path | None = None,
    kv_type: KvType = "f16",
) -> Loader[Tokenizer]:
    """The loader of a model that is called as its file or folder is."""
    return load.native_loader(
        ModelSource(
            path=str(path),
            threads=threads,
            context=context,
            name=path.name if path.is_dir() else path.stem,
            isa=isa,
            quantize=quantize,
            vision=str(vision) if vision else "",
            draft=str(draft) if draft else "",
            kv_type=kv_type,
        )
    )
