"""What every form of model file comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quintet.models.files import Map
from quintet.models.metadata import Metadata
from quintet.models.spec import ModelSpec, Tensors


@dataclass(frozen=True, slots=True)
class ModelFile:
    """An open model. Its tensors are views into memory maps, which live as long as any of them.

    Args:
        metadata: key-value pairs as GGUF has them; a GGUF file's own, the tokenizer's among them.
        spec: what the model is.
        tensors: under our own names, every shape and length checked against ``spec``.
        forget: takes what was read of the files out of this process's memory; reading on is as before.
    """

    metadata: Metadata
    spec: ModelSpec
    tensors: Tensors
    forget: Callable[[], None]


def forgetting(maps: Sequence[Map]) -> Callable[[], None]:
    """``ModelFile.forget`` over these files."""

    def forget() -> None:
        for map_ in maps:
            map_.forget()

    return forget
