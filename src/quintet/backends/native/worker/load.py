"""A model file or folder -> everything an engine in this process needs of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quintet.backends.native.core.loader import Loaded, Loader
from quintet.backends.native.wire.sources import ModelSource
from quintet.config import CacheFolder, KvType, Quantize
from quintet.inputs.tokenizer import Tokenizer
from quintet.models.gguf import read_metadata
from quintet.models.tokenizer import build_tokenizer


def load_tokenizer(path: Path, think: tuple[str, str] | None = None, *, any_model: bool = False) -> Tokenizer:
    """The tokenizer alone.

    Args:
        think: see ``build_tokenizer``.
        any_model: of a folder of a model that the native core need not know.

    Raises:
        ModelError: the file is unusable, or asks for a tokenizer that is not implemented.
    """
    if path.is_dir():
        from quintet.models.folder.tokenizer import build_folder_tokenizer  # brings the library, which files do not need

        return build_folder_tokenizer(path, think, any_model=any_model)
    return build_tokenizer(read_metadata(path), think)


def native_loader(
    path: Path,
    *,
    threads: int,
    context: int | None = None,
    name: str = "",
    isa: str = "",
    packs: CacheFolder | None = None,
    quantize: Quantize = "q8",
    vision: Path | None = None,
    draft: Path | None = None,
    kv_type: KvType = "f16",
    wanted: int | None = None,
) -> Loader[Tokenizer]:
    """How to load ``path`` for ``threads`` threads; the arguments are those of ``load_weights``.

    Args:
        name: public model name; empty = the file's stem, or the folder's name.
        vision: see ``seeing.load_vision``; ``None`` = it sees nothing.
        draft: of the draft model; ``None`` = there is none.
    """

    def load(progress: Callable[[float], None]) -> Loaded[Tokenizer]:
        from quintet.backends.native.worker.models import load_models  # only where the weights are: a front needs the tokenizer alone

        source = ModelSource(
            path=str(path),
            threads=threads,
            context=context,
            name=name or (path.name if path.is_dir() else path.stem),
            isa=isa,
            packs=packs,
            quantize=quantize,
            vision=str(vision) if vision else "",
            draft=str(draft) if draft else "",
            kv_type=kv_type,
            wanted=wanted,
        )
        return load_models(source, lambda: load_tokenizer(path), progress)

    return load
