"""``Backend`` over the embedded engine: its verbs, on the event loop's side.

::

    verbs (engine) --> requests in flight (in_flight, stream) --> link --> worker, in a thread or a process of its own
                          ^ told of deaths by the supervisor  <--  link
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cached_property

from quintet.backends.base import Capabilities, Health, Prepared, SequenceSpec, State, TokenizerInfo
from quintet.backends.native.core.loader import Loader
from quintet.backends.native.front.in_flight import InFlight
from quintet.backends.native.front.link import Link, ThreadLink
from quintet.backends.native.front.stream import Stream
from quintet.backends.native.front.supervisor import DIED, Supervisor
from quintet.backends.native.front.watchdog import STALL_S
from quintet.backends.native.wire.codec import digest
from quintet.backends.native.wire.messages import Submit
from quintet.config import EngineConfig
from quintet.errors import EngineFailed, Loading, Overloaded, TooManyRequests
from quintet.events import TokenEvent
from quintet.guides.check import GuideCheck
from quintet.inputs.infill import fim_tokens, infill
from quintet.inputs.prepare import resolve, texts, words
from quintet.inputs.think_tags import Tags, tags_of
from quintet.inputs.tokenizer import Tokenizer

INLINE_CHARS = 4096
"""Most characters tokenised on the event loop itself; that takes about as long as handing them to a thread."""

_CLOSED = "The server is shutting down."


class Engine:
    """The embedded engine; loading begins at once, in the background. Make it on the event loop that will use it.

    Where its worker can be restarted, a worker that dies or hangs is. Requests of which nothing was delivered are run again, the
    others end with an error, and a request that was being computed at two deaths is refused for a while.

    Args:
        model: how to reach a worker; or how to load a model, for a worker in a thread.
        clock: seconds, monotonic.
        stall_s: see ``STALL_S``.
    """

    def __init__(
        self, model: Link | Loader, config: EngineConfig, *, clock: Callable[[], float] = time.monotonic, stall_s: float = STALL_S
    ) -> None:
        link = model if isinstance(model, Link) else ThreadLink(model, config, clock)
        self._clock = clock
        self._max_live = config.live_limit
        self._suffix_first = config.suffix_first
        self._in_flight = InFlight(link.send, clock, digest)
        self._supervisor = Supervisor(link, self._in_flight, clock, stall_s=stall_s)
        self._ids = itertools.count(1)
        self._guides = GuideCheck()
        self._draining = False

    @property
    def failure(self) -> Exception | None:
        """Why there never was an engine: a ``ModelError`` can be told as it is."""
        return self._supervisor.failure

    @property
    def capabilities(self) -> Capabilities:
        """See ``Backend``.

        Raises:
            Loading: the model is not loaded.
        """
        if self._supervisor.capabilities is None:
            raise Loading("The model is still loading.")
        return self._supervisor.capabilities

    @property
    def live(self) -> int:
        """Sequences that have not ended."""
        return self._in_flight.live

    @property
    def tokenizer(self) -> TokenizerInfo:
        """See ``Backend``."""
        tokenizer = self._require_open()
        roles: Mapping[str, str] = getattr(tokenizer, "roles", {})
        eos, bos, pad, template = (roles.get(name, "") for name in ("eos", "bos", "pad", "chat_template"))
        return TokenizerInfo(eos, bos, pad, template, fim_tokens(tokenizer, self._suffix_first))

    async def tokenize(self, text: str, add_special: bool, quoted: bool = False) -> Sequence[int]:
        """See ``Backend``."""
        tokenizer = self._require_open()
        encode = tokenizer.encode_quoted if quoted else tokenizer.encode
        ids = encode(text) if len(text) <= INLINE_CHARS else await asyncio.to_thread(encode, text)
        before, after = (0, 0) if add_special or quoted else getattr(tokenizer, "added", (0, 0))
        return ids[before : len(ids) - after]

    async def prepare(self, specs: Sequence[SequenceSpec], tenant: str = "") -> Prepared:
        """See ``Backend``."""
        tokenizer = self._require_open()
        self._require_room(len(specs), tenant)
        wanted = texts(specs)
        if sum(map(len, wanted)) > INLINE_CHARS:
            encoded = await asyncio.to_thread(_encode, tokenizer, wanted)
        else:
            encoded = _encode(tokenizer, wanted)
        inside = {word: tokenizer.encode_inside(word) for word in words(specs)}
        grammars = await self._guides.translate(spec.guide for spec in specs)
        fim = infill(tokenizer, self._suffix_first)
        sequences = resolve(specs, encoded, self.capabilities, _separator(tokenizer), fim, inside, grammars, self._tags)
        self._require_open()
        self._require_room(len(specs), tenant)  # others may have come meanwhile; nothing can between this and submit
        return Prepared(next(self._ids), sequences, tenant)

    def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        """See ``Backend``."""
        stream = Stream(len(prepared.sequences))
        self._supervisor.run(Submit.of(prepared.request_id, prepared.sequences, self._clock(), prepared.tenant), stream)
        return stream

    def abort(self, request_id: int, seq: int | None = None) -> None:
        """See ``Backend``."""
        self._in_flight.abort(request_id, seq)

    def health(self) -> Health:
        """See ``Backend``."""
        return self._supervisor.health(draining=self._draining)

    def drain(self) -> None:
        """Take no new work, and finish what there is; ``live`` tells when that is done."""
        self._draining = True

    async def close(self) -> None:
        """See ``Backend``."""
        self._draining = True
        await self._supervisor.close()
        await self._guides.close()

    def _require_open(self) -> Tokenizer:
        if self._draining:
            raise Overloaded(_CLOSED)
        if self._supervisor.state is State.DEAD:
            raise EngineFailed(DIED)
        tokenizer = self._supervisor.tokenizer
        if tokenizer is None:
            raise Loading(f"The model is still loading ({self._supervisor.progress:.0%}).")
        return tokenizer

    @cached_property
    def _tags(self) -> Tags | None:
        return tags_of(self._require_open())

    def _require_room(self, count: int, tenant: str) -> None:
        room, own = self._max_live - self._in_flight.live - count, self._in_flight.live_of(tenant)
        if room < 0:
            raise Overloaded("The queue is full; try again later.")
        if tenant and own and own + count > room:  # one that leaves as much as it takes cannot shut the others out
            raise TooManyRequests("This API key has its share of the queue; try again later.")


def _separator(tokenizer: Tokenizer) -> int | None:
    """The token that stands for an empty prompt: what the tokenizer names, else an end-of-sequence token."""
    named: int | None = getattr(tokenizer, "separator", None)
    return min(tokenizer.eos_ids, default=None) if named is None else named


def _encode(tokenizer: Tokenizer, wanted: Sequence[str]) -> dict[str, list[int]]:
    return {text: tokenizer.encode(text) for text in wanted}
