"""A model on this machine, whatever its form: a GGUF file, or a Hugging Face folder; and what it sees with, if anything."""

from __future__ import annotations

from pathlib import Path

from quintet.models import gguf
from quintet.models.files import file_errors, is_folder
from quintet.models.opened import ModelFile
from quintet.models.vision.spec import VisionFile


def open_model(path: Path) -> ModelFile:
    """Open a model of a supported architecture.

    Raises:
        ModelError: not readable, damaged, or asking for something this server does not implement.
    """
    if is_folder(path):
        from quintet.models.folder.opening import open_folder  # a third of what reading models takes to import

        return open_folder(path)
    return gguf.open_model(path)


def open_vision(path: Path, text_hidden: int) -> VisionFile:
    """Open an image encoder with its projector.

    Args:
        path: of an mmproj file, or of a folder with a whole model.
        text_hidden: width of the embedding of the model that it is for.

    Raises:
        ModelError: not readable, damaged, of another model, or asking for something this server does not implement.
    """
    from quintet.models.vision.folder import open_seeing  # likewise, and most models see nothing
    from quintet.models.vision.mmproj import open_mmproj

    return open_seeing(path, text_hidden) if is_folder(path) else open_mmproj(path, text_hidden)


def find_vision(model: Path) -> Path | None:
    """What may hold the encoder of a model: its folder, or the first ``mmproj*.gguf`` beside its file.

    Raises:
        ModelError: the folder cannot be read.
    """
    if is_folder(model):
        from quintet.models.vision.folder import sees

        return model if sees(model) else None
    with file_errors(model.parent):
        return min((path for path in model.parent.glob("mmproj*.gguf") if path != model), default=None)
