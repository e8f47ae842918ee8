"""Images that an engine's own processor shows its model: what is asked of it, and where its answer goes. Plain code over values.

For families that are not ``layout``'s. Here an image is decoded, turned upright and, if it is to be, made smaller; how it is cut, what
stands for it and how many tokens that takes only the engine can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from quintet.errors import BadRequest, Unsupported
from quintet.inputs.images.layout import Cut, ImageTraits
from quintet.inputs.images.places import Picture, require_match
from quintet.inputs.images.value import Placed, PreparedImage
from quintet.inputs.tokenizer import Tokenizer
from quintet.request import IMAGE_MARK, Prompt

MOST_ASPECT = 50
"""An image's longer edge is at most so many times its shorter one: some processors make the shorter one as long as their model wants it,
whatever becomes of the other, and a line of a few million pixels would take all memory."""


@dataclass(frozen=True, slots=True)
class ProcessorTraits:
    """What an engine tells of a model whose images its own processor prepares. Such an engine is an ``Expander`` too.

    Args:
        token: what stands at an image's places: the model's token for images.
        text: of it.
        most: images that a prompt may have.
        longest_edge: pixels that the longer edge of an image has at most: a larger one is made smaller; 0 = it is left as it is.
    """

    token: int
    text: str
    most: int
    longest_edge: int = 0

    @property
    def around(self) -> str:
        """See ``Words``."""
        return ""

    def cut(self, width: int, height: int) -> Cut:
        """What becomes of an image of so many pixels: the whole of it, in its form."""
        longest, most = max(width, height), self.longest_edge
        if most and longest > most:
            width, height = (max(1, round(edge * most / longest)) for edge in (width, height))
        return Cut(((width, height),))


AnyTraits = ImageTraits | ProcessorTraits
"""Of a model that sees images, whoever prepares them."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """What a processor has made of an image.

    Args:
        tokens: all that stands for it where a text has a mark.
        core: (first, count) of those that stand for the model's token for images in a prompt of ids.
        places: as of ``PreparedImage``, among ``tokens``; all of them inside of ``core``.
    """

    tokens: tuple[int, ...]
    core: tuple[int, int]
    places: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        first, count = self.core
        at = first
        for start, length in self.places:
            if not (at <= start and length > 0 and start + length <= first + count <= len(self.tokens)):
                raise ValueError("an image's places are not among its tokens")
            at = start + length
        if not self.places:
            raise ValueError("an image without a place")


class Expander(Protocol):
    """An engine with a processor of its own."""

    async def expand(self, images: Sequence[PreparedImage], salt: bytes, tenant: str = "") -> tuple[Expansion, ...]:
        """What stands for each image of a prompt.

        Args:
            images: whole ones, without places.
            salt: of the caches that they may be found in.

        Raises:
            UnprocessableError: the processor does not take one of them.
            Overloaded, Loading, EngineFailed: it cannot be asked now, or does not answer.
        """
        ...


class UnprocessableError(Exception):
    """A processor does not take a prompt's images.

    Args:
        index: of the one that is to blame; ``None`` = no single one is.
        rule: what it is about it, for the client.
    """

    def __init__(self, index: int | None, rule: str) -> None:
        super().__init__(rule)
        self.index, self.rule = index, rule


@dataclass(frozen=True, slots=True)
class ExpansionPlacer:
    """Puts what an engine has made of images among the tokens of prompts."""

    traits: ProcessorTraits

    @property
    def image(self) -> int:
        """The model's token for images."""
        return self.traits.token

    def require_match(self, prompt: Prompt, images: int, name: str) -> None:
        """See ``places.require_match``.

        Raises:
            BadRequest: more or fewer places than images, or more images than a prompt may have.
        """
        require_match(prompt, images, self.image, name)
        if images > self.traits.most:
            raise BadRequest("images", f"must be at most {self.traits.most} in {name}: the model takes no more", str(images))

    def text(self, prompt: str) -> str:
        """A prompt with the model's token for images in the place of each mark."""
        return prompt.replace(IMAGE_MARK, self.traits.text)

    def require_places(self, tokens: Sequence[int], images: int, name: str) -> None:
        """The tokens of a ``text`` have a place for each image, and no other token for images.

        Raises:
            BadRequest: the client wrote the model's own token.
        """
        if tokens.count(self.image) != images:
            raise BadRequest(name, "must not hold the model's own token for images", self.traits.text)

    def place(self, prompt: Prompt, tokens: Sequence[int], pictures: Sequence[Picture], expansions: Sequence[Expansion]) -> Placed:
        """The tokens with all that stands for each image in the place of its token, and the images at them.

        Args:
            tokens: with one token for each image.
        """
        placed: list[int] = []
        images: list[PreparedImage] = []
        at = 0
        for picture, expansion in zip(pictures, expansions, strict=True):
            found = tokens.index(self.image, at)
            placed += tokens[at:found]
            first, count = (0, len(expansion.tokens)) if isinstance(prompt, str) else expansion.core
            places = tuple((len(placed) + start - first, length) for start, length in expansion.places)
            images.append(bitmap(picture, places, (len(placed), count)))
            placed += expansion.tokens[first : first + count]
            at = found + 1
        return Placed((*placed, *tokens[at:]), tuple(images))


def bitmap(picture: Picture, places: tuple[tuple[int, int], ...] = (), span: tuple[int, int] = (0, 0)) -> PreparedImage:
    """A whole image, at these places of a prompt."""
    ((width, height),) = picture.cut.sizes
    return PreparedImage(picture.digest, places, span, (1, height, width), picture.pixels)


def expansion_placer_of(tokenizer: Tokenizer, traits: ProcessorTraits, model: str) -> ExpansionPlacer:
    """For a model's own tokens.

    Raises:
        Unsupported: its token for images is none in a text.
    """
    if tokenizer.encode_inside(traits.text) != [traits.token]:
        raise Unsupported("images", f"cannot be used with {model}, whose token for images is no token in a text")
    return ExpansionPlacer(traits)
