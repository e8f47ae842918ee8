"""``--mmproj``: which image encoder a model sees with, and whether it can."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from quintet.backends.native.worker.load import load_tokenizer
from quintet.cli.describe import encoder_bytes
from quintet.cli.references import NO_ENCODER
from quintet.config import Quantize
from quintet.errors import ModelError, counted
from quintet.inputs.images.places import missing_words
from quintet.models.files import Report
from quintet.models.opening import find_vision, open_vision


def find_encoder(named: str, model: Path, hidden: int, quantize: Quantize, report: Report) -> tuple[str, int]:
    """Where the model's image encoder is, and its bytes in memory; empty if there is none that it can use.

    Args:
        named: see ``EngineOptions.mmproj``.
        hidden: width of the model's embedding.

    Raises:
        ModelError: a file that was named cannot be used.
    """
    if named == NO_ENCODER or (path := Path(named) if named else find_vision(model)) is None:
        return "", 0
    try:
        file = open_vision(path, hidden)
        if path != model:
            _require_words(model, path, file.spec.projector)
    except ModelError as error:
        if named:
            raise ModelError(f"--mmproj: {error}") from None
        report.note(f"{path.name} is not used: {error}")
        return "", 0
    spec = file.spec
    report.note(
        f"images are taken: {path.name}, {spec.projector}, {counted(spec.tokens, 'token')} for each {spec.image} x {spec.image} pixels"
    )
    return str(path), encoder_bytes(spec, file.tensors, quantize)


def _require_words(model: Path, encoder: Path, projector: Literal["idefics3", "gemma3"]) -> None:
    """Models of several families are equally wide: that of SmolLM2 is SmolVLM's, whose vocabulary has more.

    Raises:
        ModelError: the model's vocabulary does not have the tokens that stand for images.
    """
    if missing := missing_words(load_tokenizer(model), projector):
        raise ModelError(f"{encoder.name}: it is for another model than {model.name}, whose vocabulary has no {missing}.")
