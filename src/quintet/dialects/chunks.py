"""What the renderers have in common whose stream chunks and JSON body are of one shape: the body is the chunks, put together again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any, Generic, Protocol, Self, TypeVar

from msgspec import Raw

from quintet.dialects.base import Headers
from quintet.dialects.columns import HOLE, STRETCH, S, filled, growing, written
from quintet.dialects.wire import encode
from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finished, TokenText
from quintet.request import CompletionRequest


class Choice(Protocol):
    """What a chunk, or the body, has of a choice. ``text`` and ``finish_reason`` are strings, or what stands for their absence."""

    index: int
    text: Any
    finish_reason: Any

    def extend(self, later: Self) -> None:
        """Append what a later chunk has; text and finish reason are seen to."""
        ...


ChoiceT = TypeVar("ChoiceT", bound=Choice)


class Chunk(Protocol[ChoiceT]):
    """A chunk, or the body."""

    choices: list[ChoiceT]


ChunkT = TypeVar("ChunkT", bound=Chunk[Any])


class ChunkRenderer(ABC, Generic[ChoiceT, ChunkT]):
    """See ``Renderer``.

    The last choice's end waits for the usage, so that one chunk brings both.

    Args:
        end_alone: it does not: the usage has a chunk without choices.
    """

    def __init__(self, request: CompletionRequest, end_alone: bool = False) -> None:
        self._running = set(range(len(request.prompts) * request.n))
        self._end_alone = end_alone
        self._held: ChoiceT | None = None
        self._bodies: dict[int, ChoiceT] = {}
        self._texts: dict[int, list[str]] = {}
        self._last: ChunkT | None = None
        self._around: list[bytes] | None = None  # head and tail of a chunk
        self._shared: tuple[Sequence[TokenText], Any] = (), None  # tokens of an echo, and what was made of them

    def feed(self, event: Event) -> list[bytes]:
        if isinstance(event, ChoiceDelta):  # what is around a delta's choice stays the same: it is written once
            if self._around is None:
                empty = self._body([])
                empty.choices = [HOLE]
                self._around = encode(empty).split(bytes(HOLE))
            head, tail = self._around
            return [b"%b%b%b" % (head, encode(piece), tail) for piece in self._pieces(event)]
        if isinstance(event, Failed):
            return [encode(self._broken(event))]
        return [encode(chunk) for chunk in self._chunks(event)]

    def add(self, event: Event) -> None:
        for last in self._chunks(event):
            self._last = last
            for piece in last.choices:
                body = self._bodies.get(piece.index)
                if body is None:
                    self._bodies[piece.index] = growing(piece)
                else:
                    body.finish_reason = piece.finish_reason or body.finish_reason
                    body.extend(piece)
                if isinstance(piece.text, str):
                    self._texts.setdefault(piece.index, []).append(piece.text)

    def body(self) -> Iterator[bytes]:
        assert self._last is not None
        return filled(self._last, map(self._whole, sorted(self._bodies)))

    def _whole(self, index: int) -> ChoiceT:
        """A choice of the body. Made when it is its turn: a long prompt that is echoed a thousand times is not held as often."""
        whole = copy(self._bodies[index])
        if parts := self._texts.get(index):
            # Encoded by itself, for what encodes text that is not ASCII looks at all that is around it.
            whole.text = Raw(encode("".join(parts)))
        return whole

    def weight(self, _event: Event) -> float:
        return 0

    def late(self) -> None:
        pass

    def headers(self, _events: Sequence[Event]) -> Headers:
        return ()

    def _chunks(self, event: Event) -> list[ChunkT]:
        match event:
            case ChoiceDelta():
                return [self._body([piece]) for piece in self._pieces(event)]
            case ChoiceDone():
                self._running.discard(event.index)
                end = self._end(event)
                if self._running or self._end_alone:
                    return [self._body([end])]
                self._held = end
                return []
            case Finished():
                last = self._body([] if self._held is None else [self._held])
                self._finish(last, event)
                return [last]
            case Failed(message):
                raise ValueError(f"a failed request has no body: {message}")

    def _entries(self, tokens: Sequence[TokenText], write: Callable[[Sequence[TokenText]], S]) -> S:
        """What ``write`` makes of tokens; of many at once, as an echoed prompt has them, as JSON, and once for all its samples."""
        if len(tokens) <= STRETCH:
            return write(tokens)
        if self._shared[0] is not tokens:
            self._shared = tokens, written([write(tokens[at : at + STRETCH]) for at in range(0, len(tokens), STRETCH)])
        made: S = self._shared[1]
        return made

    @abstractmethod
    def _body(self, choices: list[ChoiceT]) -> ChunkT:
        """A chunk of these choices; around them the same for all of a stream."""

    @abstractmethod
    def _pieces(self, delta: ChoiceDelta) -> list[ChoiceT]:
        """The choice of a delta's chunk; none if the client did not ask to see any of it."""

    @abstractmethod
    def _end(self, done: ChoiceDone) -> ChoiceT:
        """The choice of the chunk with its finish reason, without text."""

    @abstractmethod
    def _finish(self, last: ChunkT, event: Finished) -> None:
        """Put into the last chunk what concerns the whole request."""

    @abstractmethod
    def _broken(self, event: Failed) -> object:
        """What the last frame of a stream that broke off says."""
