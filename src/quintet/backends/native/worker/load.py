"""A model file or folder -> everything an engine in this process needs of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quintet.backends.native.core.loader import Loaded, Loader
from quintet.backends.native.wire.sources import ModelSource
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


def native_loader(source: ModelSource) -> Loader[Tokenizer]:
    """How to load a model in this process, with its tokenizer."""

    def load(progress: Callable[[float], None]) -> Loaded[Tokenizer]:
        from quintet.backends.native.worker.models import load_models  # only where the weights are: a front needs the tokenizer alone

        return load_models(source, lambda: load_tokenizer(Path(source.path)), progress)

    return load
