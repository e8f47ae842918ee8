"""What a model sees with: its encoder's file -> the encoder with its weights packed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from quintet.backends.native.core.runner import NativeRunner
from quintet.backends.native.core.vision import NativeEncoder
from quintet.backends.native.worker.weights import Digest
from quintet.config import Quantize
from quintet.errors import ModelError
from quintet.inputs.images.layout import ImageTraits
from quintet.models.files import file_errors, is_folder, parts
from quintet.models.opening import open_vision
from quintet.models.vision.quantize import settled


def load_vision(
    path: Path, model: Path, runner: NativeRunner, quantize: Quantize, fingerprint: str, progress: Callable[[float], None]
) -> tuple[NativeEncoder, ImageTraits, str]:
    """The encoder, how it sees, and the fingerprint of both models.

    Args:
        path: of an mmproj file, or of a folder with a whole model.
        model: of the language model's file or folder.
        runner: of the language model; both compute on its threads.
        fingerprint: of the language model's files.

    Raises:
        ModelError: a file is unusable, or not for this model.
    """
    file = open_vision(path, runner.hidden)
    if runner.window and file.spec.projector == "gemma3":
        raise ModelError(f"{file.name}: a model whose every layer looks at its last tokens alone cannot see both ways within an image.")
    digest = _digest(path, model, quantize)
    spec = file.spec

    def told(share: float) -> None:
        file.forget()
        progress(share)

    try:
        encoder = NativeEncoder(spec, runner.cpu, settled(file.tensors, quantize))
        encoder.take_weights(file.tensors, told)
    except MemoryError:
        raise ModelError(f"{file.name}: there is not enough memory for its weights.") from None
    except ValueError as error:
        raise ModelError(f"{file.name}: {error}") from error
    if digest is not None:
        fingerprint = f"fp_{hashlib.sha256(f'{fingerprint} {digest.result()}'.encode()).hexdigest()[:10]}"
    return encoder, ImageTraits(spec.projector, spec.image, spec.longest_edge, spec.tokens), fingerprint


def _digest(path: Path, model: Path, quantize: Quantize) -> Digest | None:
    """Of the encoder's files; ``None`` = they are the language model's, which its fingerprint covers."""
    with file_errors(path):
        if path.samefile(model):
            return None
    return Digest(parts(path) if is_folder(path) else (path,), quantize)
