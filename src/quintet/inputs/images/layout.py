"""How a model sees an image: the tiles that it is cut into, and what stands for it in a prompt. Plain code over values.

As transformers' processors have it, to the pixel and the token ("Source": transformers 5.23, ``Idefics3ImageProcessorPil``,
``Idefics3Processor``, ``Gemma3ImageProcessorPil``, ``Gemma3Processor``): ``tests/reference/transformers_images.json`` holds what they made
of odd sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ImageTraits:
    """What an engine tells of its model: which processor of images it was trained with, and its numbers.

    Args:
        family: ``idefics3`` (SmolVLM too): tiles and an overview; ``gemma3``: one tile, whatever the image's form.
        tile: pixels of a tile's edge, which is what the encoder takes.
        longest_edge: pixels to which the longer edge is brought before an image is cut into tiles; ``gemma3`` has no use for it.
        tokens_per_tile: places that a tile takes in a prompt.
    """

    family: Literal["idefics3", "gemma3"]
    tile: int
    longest_edge: int
    tokens_per_tile: int

    @property
    def around(self) -> str:
        """See ``Words``."""
        return WORDS[self.family].around

    def cut(self, width: int, height: int) -> Cut:
        """What becomes of an image of so many pixels, both at least 1."""
        if self.family == "gemma3":  # source: "do_pan_and_scan": False
            return Cut(((self.tile, self.tile),))
        longest = _longest_edge(width, height, self.longest_edge)
        whole = _multiples(*longest, self.tile)
        columns, rows = (edge // self.tile for edge in whole)
        return Cut((longest, whole), rows, columns) if rows * columns > 1 else Cut((longest, whole))

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile's pixels."""
        return self.tile * self.tile * 3


@dataclass(frozen=True, slots=True)
class Words:
    """Texts of a family's tokens for images, each of which is one token.

    Args:
        image: at a place.
        first, last: around all that stands for an image.
        around: plain text before the first and after the last.
    """

    image: str
    first: str
    last: str
    around: str = ""


WORDS = {
    "idefics3": Words("<image>", "<fake_token_around_image>", "<fake_token_around_image>"),
    "gemma3": Words("<image_soft_token>", "<start_of_image>", "<end_of_image>", around="\n\n"),
}


FILTERS = {"idefics3": "lanczos", "gemma3": "bilinear"}
"""How a family's processor resizes."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What becomes of an image.

    Args:
        sizes: width and height that it is resized to, one after the other.
        rows, columns: of the tiles that it is cut into then, before an overview of one tile; 0 = the overview is all there is.
    """

    sizes: tuple[tuple[int, int], ...]
    rows: int = 0
    columns: int = 0

    @property
    def tiles(self) -> int:
        """How many there are."""
        return self.rows * self.columns + 1


def layout(cut: Cut, traits: ImageTraits) -> str:
    """What stands for an image in the text of a prompt, with one token for all the places of a tile."""
    words = WORDS[traits.family]
    if traits.family == "gemma3":
        return f"{words.around}{words.first}{words.image}{words.last}{words.around}"
    rows = [
        "".join(f"{words.first}<row_{row}_col_{column}>{words.image}" for column in range(1, cut.columns + 1)) + "\n"
        for row in range(1, cut.rows + 1)
    ]
    return f"{''.join(rows)}{chr(10) if rows else ''}{words.first}<global-img>{words.image}{words.last}"


def _longest_edge(width: int, height: int, most: int) -> tuple[int, int]:
    """Source, ``_resize_output_size_rescale_to_max_len``: the other edge is rounded down, then up to an even number, and at least 1."""
    aspect = width / height
    if width >= height:
        other = int(most / aspect)
        return most, max(other + other % 2, 1)
    other = int(most * aspect)
    return max(other + other % 2, 1), most


def _multiples(width: int, height: int, tile: int) -> tuple[int, int]:
    """Source, ``resize_for_vision_encoder``: the longer edge is brought up to tiles, the other one after it, and up to tiles too."""
    aspect = width / height
    if width >= height:
        width = _up(width, tile)
        return width, _up(int(width / aspect), tile)
    height = _up(height, tile)
    return _up(int(height * aspect), tile), height


def _up(edge: int, tile: int) -> int:
    return -(-edge // tile) * tile
