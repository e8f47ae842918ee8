"""An engine of one screen, made by following docs/contributing/add-an-engine.md: a bigram model over bytes, stepped on the event loop.

It has temperature, ``top_p``, seeds and log-probabilities, and no other control, no guides and no cache; what it lacks is refused above it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from quintet.backends.base import Counts, Health, State, require_open
from quintet.backends.toy import EOS, VOCAB, ToyTokenizer
from quintet.errors import Overloaded
from quintet.events import Finish, TokenEvent
from quintet.inputs.capabilities import Capabilities, Control, Feature, Supported
from quintet.inputs.sequence import Prepared, PreparedSequence

CONTEXT = 512
MOST = 200
"""Sequences that it takes at once."""

_TABLE = 2 * np.random.RandomState(7).standard_normal((VOCAB, VOCAB))
_HAS = Supported(frozenset({Control.TEMPERATURE, Control.TOP_P, Control.SEED}), frozenset({Feature.LOGPROBS}), frozenset())


@dataclass(eq=False)
class _Request:
    """One that was submitted: its sequences that have not ended, with their tokens so far, and events that nobody has taken yet."""

    sequences: Sequence[PreparedSequence]
    running: dict[int, list[int]]
    events: asyncio.Queue[list[TokenEvent]] = field(default_factory=asyncio.Queue)


class BigramEngine:
    """See ``Backend``."""

    def __init__(self) -> None:
        self._bytes = ToyTokenizer()
        self._capabilities = Capabilities(
            model="bigram",
            context=CONTEXT,
            vocab=VOCAB,
            pieces=self._bytes.pieces,
            max_logprobs=20,
            max_sequences=128,
            fingerprint="bigram-1",
            supported=_HAS,
        )
        self._requests: dict[int, _Request] = {}
        self._state = State.READY
        self._steps = self._tokens = 0
        self._loop: asyncio.Task[None] | None = None
        self.failure: Exception | None = None

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def tokenizer(self) -> ToyTokenizer:
        self.require_room(0, begun=True)
        return self._bytes

    @property
    def live(self) -> int:
        return sum(len(request.running) for request in self._requests.values())

    def require_room(self, count: int, tenant: str = "", *, begun: bool = False) -> None:
        if not (begun and self._state is State.DRAINING):
            require_open(self._state)
        if self.live + count > MOST:
            raise Overloaded("The queue is full.")

    def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        request = _Request(prepared.sequences, {seq: [*one.tokens] for seq, one in enumerate(prepared.sequences)})
        self._requests[prepared.request_id] = request
        if self._state is State.CLOSED:
            self.abort(prepared.request_id)
        elif self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run())
        return _told(request)

    def abort(self, request_id: int, seq: int | None = None) -> None:
        request = self._requests.get(request_id)
        if request is not None:
            ended = [one for one in request.running if seq in (None, one)]
            self._tell(request_id, [TokenEvent(one, -1, finish=Finish.ABORT) for one in ended])

    def health(self) -> Health:
        return Health(self._state, running=self.live, counts=Counts(self._steps, self._tokens))

    def drain(self) -> None:
        self._state = State.DRAINING if self._state is State.READY else self._state

    async def close(self) -> None:
        self._state = State.CLOSED
        for request_id in [*self._requests]:
            self.abort(request_id)

    async def _run(self) -> None:
        """A step for every running sequence, then the others' turn on the loop, until there is none."""
        while self._requests:
            self._steps += 1
            for request_id, request in [*self._requests.items()]:
                self._tell(request_id, [_step(seq, request.sequences[seq], ids) for seq, ids in request.running.items()])
            await asyncio.sleep(0)

    def _tell(self, request_id: int, events: list[TokenEvent]) -> None:
        request = self._requests[request_id]
        for event in events:
            self._tokens += event.token >= 0
            if event.finish is not None:
                del request.running[event.seq]
        if events:
            request.events.put_nowait(events)
        if not request.running:
            del self._requests[request_id]


async def _told(request: _Request) -> AsyncIterator[Sequence[TokenEvent]]:
    while request.running or not request.events.empty():
        yield await request.events.get()


def _step(seq: int, given: PreparedSequence, ids: list[int]) -> TokenEvent:
    """The next token of a sequence, put to its ids."""
    if given.max_tokens == 0:
        return TokenEvent(seq, -1, finish=Finish.LENGTH)
    logits = _TABLE[ids[-1]]
    logprobs = logits - np.logaddexp.reduce(logits)
    order = np.argsort(-logits, kind="stable")
    token = int(order[_drawn(logits[order], given, len(ids))])
    ids.append(token)
    last = len(ids) - len(given.tokens) == given.max_tokens
    finish = Finish.EOS if token == EOS else Finish.LENGTH if last else None
    piece = b"" if token == EOS else bytes([token])
    if given.logprobs is None:
        return TokenEvent(seq, token, piece, finish=finish)
    top = tuple((int(one), float(logprobs[one])) for one in order[: given.logprobs])
    return TokenEvent(seq, token, piece, float(logprobs[token]), top, finish=finish)


def _drawn(falling: np.ndarray[tuple[int], np.dtype[np.float64]], given: PreparedSequence, position: int) -> int:
    """Which of the logits, likeliest first; a function of seed and position, so that company does not matter."""
    controls = given.sampling
    if controls.temperature == 0:
        return 0
    weights = np.exp((falling - falling[0]) / controls.temperature)
    sums = np.cumsum(weights / weights.sum())
    kept = int(np.searchsorted(sums, controls.top_p)) + 1
    drawn = np.random.Generator(np.random.Philox(key=[controls.seed, position])).random() * sums[:kept][-1]
    return int(np.searchsorted(sums[:kept], drawn))
