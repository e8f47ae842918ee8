"""A backend that sees images: it says which, by their digests. Bytes are tokens 0 to 255, and a model's own words for images come after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

from quintet.backends.base import Health, State
from quintet.backends.toy import EOS, ToyTokenizer
from quintet.events import Finish, TokenEvent
from quintet.inputs.capabilities import EVERYTHING, Capabilities
from quintet.inputs.images.expansion import Expansion, ProcessorTraits, UnprocessableError
from quintet.inputs.images.layout import WORDS, ImageTraits
from quintet.inputs.images.value import PreparedImage
from quintet.inputs.sequence import Prepared, PreparedSequence
from quintet.inputs.tokenizer import Tokenizer
from quintet.models.special import Specials

IDEFICS = ImageTraits("idefics3", 32, 96, 4)
GEMMA = ImageTraits("gemma3", 64, 64, 16)

_CONTROLS = [text for words in WORDS.values() for text in dict.fromkeys((words.image, words.first, words.last))]
_CONTROLS += ["<global-img>", *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5))]
_BREAKS = ["\n" * count for count in (2, 3, 4)]  # a vocabulary has tokens for several, as Gemma's has
IDS = {text: EOS + 1 + at for at, text in enumerate([*_CONTROLS, *_BREAKS])}


ROWS = ProcessorTraits(IDS["<image_soft_token>"], "<image_soft_token>", 3)
"""Of a model that its engine's own processor shows images, see ``SeeingBackend.expand``."""


class SeeingTokenizer(ToyTokenizer):
    """As the toy's, and the words above are one token each."""

    def __init__(self) -> None:
        super().__init__()
        self._specials = Specials([*IDS.items()])

    @property
    def pieces(self) -> Sequence[bytes]:
        return [*super().pieces, *(b"" for _ in _CONTROLS), *(text.encode() for text in _BREAKS)]

    def spelling(self, token: int) -> str:
        return super().spelling(token) or next(text for text, one in IDS.items() if one == token)

    def encode(self, text: str) -> list[int]:
        found: list[int] = []
        for part in self._specials.cut(text):
            found += [part] if isinstance(part, int) else part.encode()
        return found


@dataclass(eq=False)
class SeeingBackend:
    """Every sequence generates ``saw`` and the beginnings of its images' digests, a byte a step."""

    traits: ImageTraits | ProcessorTraits | None = IDEFICS
    context: int = 2048
    submitted: list[Prepared] = field(default_factory=list)
    expanded: list[tuple[tuple[int, int], bytes]] = field(default_factory=list)  # width and height, and the salt, of each image
    answer: asyncio.Event | None = None  # what is made of images is told then; at once without one
    failure: Exception | None = None
    live: int = 0

    @property
    def capabilities(self) -> Capabilities:
        pieces = self.tokenizer.pieces
        return Capabilities(
            model="seeing",
            context=self.context,
            vocab=len(pieces),
            pieces=pieces,
            max_logprobs=5,
            max_sequences=128,
            fingerprint="fp_seeing",
            supported=EVERYTHING,
            images=self.traits,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        return SeeingTokenizer()

    def require_room(self, count: int, tenant: str = "", *, begun: bool = False) -> None:
        """There always is."""

    async def expand(self, images: Sequence[PreparedImage], salt: bytes, tenant: str = "") -> tuple[Expansion, ...]:
        """Rows of places, one for each 8 x 8 pixels, with a break after each and an end; nothing narrower than that."""
        made = []
        for number, image in enumerate(images):
            height, width = (edge // 8 for edge in image.shape[1:])
            if not height * width:
                raise UnprocessableError(number, "must be 8 pixels wide and high")
            self.expanded.append((image.shape[:0:-1], salt))
            row = [*[IDS["<image_soft_token>"]] * width, IDS["<global-img>"]]
            tokens = (IDS["<start_of_image>"], *row * height, IDS["<end_of_image>"])
            made.append(Expansion(tokens, (1, len(tokens) - 2), tuple((1 + at * len(row), width) for at in range(height))))
        if self.answer is not None:
            await self.answer.wait()
        return tuple(made)

    async def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        self.submitted.append(prepared)
        seen: set[object] = set()
        for seq, one in enumerate(prepared.sequences):
            same = one.tokens, tuple(image.digest for image in one.images)
            if one.echo and same not in seen:
                places = {at for image in one.images for first, count in image.places for at in range(first, first + count)}
                echo = [*enumerate(one.tokens)][one.echo_from :]
                yield [self._event(seq, token, one, prompt=True, scored=at not in places) for at, token in echo]
            seen.add(same)
        for seq, one in enumerate(prepared.sequences):
            for event in self._said(seq, one):
                yield [event]

    def _said(self, seq: int, one: PreparedSequence) -> Iterator[TokenEvent]:
        text = " ".join(["saw", *(image.digest.hex()[:4] for image in one.images)]).encode()[: one.max_tokens]
        for byte in text:
            yield self._event(seq, byte, one)
        yield TokenEvent(seq, -1, finish=Finish.LENGTH) if len(text) == one.max_tokens else TokenEvent(seq, EOS, b"", finish=Finish.EOS)

    def _event(self, seq: int, token: int, one: PreparedSequence, prompt: bool = False, scored: bool = True) -> TokenEvent:
        piece = self.tokenizer.pieces[token]
        return TokenEvent(seq, token, piece, -0.5 if scored and one.logprobs is not None else None, (), prompt)

    def abort(self, request_id: int, seq: int | None = None) -> None:
        """It is over before that."""

    def health(self) -> Health:
        return Health(State.READY)

    def drain(self) -> None:
        """Nothing is under way."""

    async def close(self) -> None:
        """There is nothing to free."""
