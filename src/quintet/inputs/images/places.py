"""Where a prompt's images are among its tokens. Plain code over values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quintet.errors import BadRequest, Unsupported
from quintet.inputs.images.layout import WORDS, Cut, ImageTraits, layout
from quintet.inputs.images.value import Placed, PreparedImage
from quintet.inputs.tokenizer import Tokenizer
from quintet.request import IMAGE_MARK, Prompt


@dataclass(frozen=True, slots=True)
class Picture:
    """An image as a model sees it.

    Args:
        digest, pixels: see ``PreparedImage``.
    """

    cut: Cut
    digest: bytes
    pixels: bytes


@dataclass(frozen=True, slots=True)
class Placer:
    """Puts images among the tokens of prompts.

    Args:
        image, first, last: the model's tokens for images, see ``layout.Words``.
    """

    traits: ImageTraits
    image: int
    first: int
    last: int

    def require_match(self, prompt: Prompt, images: int, name: str) -> None:
        """See ``require_match``."""
        require_match(prompt, images, self.image, name)

    def text(self, prompt: str, pictures: Sequence[Picture]) -> str:
        """A prompt with what stands for its images in the place of its marks, one token of them for each tile."""
        parts = prompt.split(IMAGE_MARK)
        return parts[0] + "".join(self.laid(picture) + part for picture, part in zip(pictures, parts[1:], strict=True))

    def laid(self, picture: Picture) -> str:
        """What stands for an image, one token of it for each tile."""
        return layout(picture.cut, self.traits)

    def ids(self, prompt: Sequence[int], laid: Sequence[Sequence[int]]) -> list[int]:
        """The same for a prompt of token ids.

        Args:
            laid: the tokens of what stands for each image.
        """
        made: list[int] = []
        images = iter(laid)
        for token in prompt:
            made += next(images) if token == self.image else [token]
        return made

    def place(self, tokens: Sequence[int], pictures: Sequence[Picture], name: str) -> Placed:
        """The tokens with all the places of each tile, and the images at them.

        Args:
            tokens: of a prompt in which one token stands for each tile.
            name: of the prompt.

        Raises:
            BadRequest: a token for images is in it that does not stand for one.
        """
        if tokens.count(self.image) != sum(picture.cut.tiles for picture in pictures):
            raise BadRequest(name, "must not hold the model's own token for images", WORDS[self.traits.family].image)
        placed: list[int] = []
        images: list[PreparedImage] = []
        each, at = self.traits.tokens_per_tile, 0
        for picture in pictures:
            places: list[tuple[int, int]] = []
            for _ in range(picture.cut.tiles):
                found = tokens.index(self.image, at)
                placed += tokens[at:found]
                places.append((len(placed), each))
                placed += [self.image] * each
                at = found + 1
            start = places[0][0] - 1  # where what stands for the image begins: at the nearest such token before its first place
            while placed[start] != self.first:
                start -= 1
            after = tokens.index(self.last, at) + 1 - at  # tokens behind its last place that stand for it too
            shape = picture.cut.tiles, self.traits.tile, self.traits.tile
            span = start, len(placed) + after - start
            images.append(PreparedImage(picture.digest, tuple(places), span, shape, picture.pixels))
        return Placed((*placed, *tokens[at:]), tuple(images))


def require_match(prompt: Prompt, images: int, token: int, name: str) -> None:
    """A prompt has as many places as it has images.

    A text's are its marks. Of token ids it is the model's token for images, once for each image, wherever its tokens come from.

    Args:
        token: the model's for images.
        name: of the prompt.

    Raises:
        BadRequest: it has more or fewer.
    """
    marks = prompt.count(IMAGE_MARK if isinstance(prompt, str) else token)  # type: ignore[arg-type]
    if marks != images:
        what = IMAGE_MARK if isinstance(prompt, str) else f"tokens {token}"
        raise BadRequest("images", f"must be as many as {what} in {name}", f"{images} for {marks}")


def placer_of(tokenizer: Tokenizer, traits: ImageTraits, model: str) -> Placer:
    """For a model's own tokens.

    Raises:
        Unsupported: its vocabulary does not have all of them.
    """
    if missing := missing_words(tokenizer, traits.family):
        raise Unsupported("images", f"cannot be used with {model}, whose vocabulary has no {missing}")
    words = WORDS[traits.family]
    image, first, last = (tokenizer.encode_inside(text)[0] for text in (words.image, words.first, words.last))
    return Placer(traits, image, first, last)


def missing_words(tokenizer: Tokenizer, family: Literal["idefics3", "gemma3"]) -> str:
    """Which of a family's texts for images are no tokens of a vocabulary; empty = all are."""
    words = WORDS[family]
    texts = dict.fromkeys((words.image, words.first, words.last))
    return " and no ".join(text for text in texts if len(tokenizer.encode_inside(text)) != 1)
