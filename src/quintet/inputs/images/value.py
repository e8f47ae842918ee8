"""An image on its way to an engine. Plain code over values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, weakref_slot=True)
class PreparedImage:
    """An image as a model sees it, and where among its sequence's tokens.

    Args:
        digest: 32 bytes, of the pixels, their shape and how they came about: equal digests mean equal rows of embeddings.
        places: runs of (first token, count) whose embeddings are the image's, in order, a tile each; they hold the model's image token.
            Nothing is drafted from them, penalised for them, or scored at them.
        span: (first token, count) of all that stands for the image: ``places`` and the tokens around them.
        shape: tiles, height, width.
        pixels: uint8 RGB, [tiles, height, width, 3] in rows; the engine normalises them.
    """

    digest: bytes
    places: tuple[tuple[int, int], ...]
    span: tuple[int, int]
    shape: tuple[int, int, int]
    pixels: bytes


class Placed(NamedTuple):
    """A prompt's tokens, with all that stands for its images, and the images at them."""

    tokens: tuple[int, ...]
    images: tuple[PreparedImage, ...]
