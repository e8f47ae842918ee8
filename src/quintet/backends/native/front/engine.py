"""``Backend`` over the embedded engine: the event loop's side. A worker, in a thread or a process of its own, does the rest."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Sequence
from operator import add

from quintet.backends.base import BATCH_TOKENS, Counts, Health, Pages, State, require_open
from quintet.backends.native.core.loader import Loader
from quintet.backends.native.front.in_flight import InFlight
from quintet.backends.native.front.link import Link, ThreadLink
from quintet.backends.native.front.restarts import GIVEN_UP, pause
from quintet.backends.native.front.stream import Stream
from quintet.backends.native.wire.codec import digest
from quintet.backends.native.wire.messages import Died, FromWorker, Progress, Ready, Started, Stepped, Submit
from quintet.config import EngineConfig
from quintet.errors import Loading, Overloaded, TooManyRequests
from quintet.events import Finish, TokenEvent
from quintet.inputs.capabilities import EVERYTHING, Capabilities
from quintet.inputs.sequence import Prepared
from quintet.inputs.tokenizer import Tokenizer
from quintet.models.pieces import Pieces

STALL_S = 10.0
"""Work waits and no step finished for so long: the engine hangs, whatever its port says."""

SLOW_STEPS = 4
"""Or for so many of its longest steps, estimated or seen, if that is more: a large model on a small machine is slow, and not stuck."""

LOAD_STALL_S = 30.0
"""A restart that says nothing for so long hangs too. The first start is its user's to watch."""

_LOOKS = 20  # looks at a hang per stall time
_DIED = "The engine has failed."
_log = logging.getLogger(__name__)


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
        self,
        model: Link | Loader[Tokenizer],
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        stall_s: float = STALL_S,
    ) -> None:
        self._clock = clock
        self._link = model if isinstance(model, Link) else ThreadLink(model, config, clock)
        self._max_live = config.live_limit
        self._in_flight = InFlight(self._link.send, clock, digest)
        self._state = State.LOADING
        self._progress = 0.0
        self._capabilities: Capabilities | None = None
        self._running = self._waiting = 0
        self._counts = self._past = Counts()  # of the worker that runs; of those before it
        self._pages = Pages()
        self._batches = [0] * (len(BATCH_TOKENS) + 1)
        self._moved = self._looked = clock()  # when a step last finished or work arrived at an idle engine
        self._stall_s, self._least_stall_s = stall_s, stall_s
        self._failures = 0  # starts in a row that did not reach readiness
        self._draining = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failure: Exception | None = None
        self._link.start(self._take)

    @property
    def capabilities(self) -> Capabilities:
        """See ``Backend``."""
        if self._capabilities is None:
            raise Loading("The model is still loading.")
        return self._capabilities

    @property
    def live(self) -> int:
        """See ``Backend``."""
        return self._in_flight.live

    @property
    def failure(self) -> Exception | None:
        """See ``Backend``."""
        return self._failure

    @property
    def tokenizer(self) -> Tokenizer:
        """See ``Backend``."""
        require_open(self.health().state)
        return self._loaded_tokenizer()

    def require_room(self, count: int, tenant: str = "") -> None:
        """See ``Backend``."""
        require_open(self.health().state)
        room, own = self._max_live - self._in_flight.live - count, self._in_flight.live_of(tenant)
        if room < 0:
            raise Overloaded("The queue is full; try again later.")
        if tenant and own and own + count > room:  # one that leaves as much as it takes cannot shut the others out
            raise TooManyRequests("This API key has its share of the queue; try again later.")

    def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        """See ``Backend``."""
        stream = Stream(len(prepared.sequences))
        if self._state is State.DEAD:
            stream.end(Finish.ERROR, _DIED)
        elif self._state is State.CLOSED:
            stream.end(Finish.ABORT)
        else:
            self._start(Submit.of(prepared.request_id, prepared.sequences, self._clock(), prepared.tenant), stream)
        return stream

    def _start(self, submit: Submit, stream: Stream) -> None:
        if not self._in_flight.live:
            self._moved = submit.at
        self._in_flight.add(submit, stream)
        self._watch()

    def abort(self, request_id: int, seq: int | None = None) -> None:
        """See ``Backend``."""
        self._in_flight.abort(request_id, seq)

    def health(self) -> Health:
        """See ``Backend``."""
        state = self._state
        if self._draining and state is not State.CLOSED:
            state = State.DRAINING
        elif self._stalled():
            state = State.STALLED
        counts = _sum(self._past, self._counts)
        return Health(state, self._progress, self._running, self._waiting, counts, self._pages, tuple(self._batches))

    def drain(self) -> None:
        """See ``Backend``."""
        self._draining = True

    async def close(self) -> None:
        """See ``Backend``."""
        self._draining = True
        if self._state is not State.CLOSED:
            self._state = State.CLOSED
            for timer in self._timers.values():
                timer.cancel()
            self._end_all(Finish.ABORT)
        await self._link.close()

    def _loaded_tokenizer(self) -> Tokenizer:
        assert self._link.tokenizer is not None, "it is there before ``Ready``"
        return self._link.tokenizer

    def _take(self, message: FromWorker) -> None:
        if self._state is State.CLOSED:
            return
        match message:
            case Stepped():
                self._stepped(message)
            case Started(requests):
                self._in_flight.begin(requests)
            case Progress(share):
                self._progress, self._moved = share, self._clock()
            case Ready():
                self._ready(message)
            case Died():
                self._died(message.error)

    def _stepped(self, message: Stepped) -> None:
        before, self._counts = self._counts, message.counts
        self._running, self._waiting, self._pages = message.running, message.waiting, message.pages
        now, moved = self._clock(), self._moved
        self._moved = now
        if message.counts.steps > before.steps:
            self._stall_s = max(self._stall_s, SLOW_STEPS * (now - moved))
            self._batches[bisect_left(BATCH_TOKENS, message.counts.tokens - before.tokens)] += 1
        pieces = self.capabilities.pieces if message.events else ()
        for request_id, rows in message.events.items():
            self._in_flight.push(request_id, [row.event(pieces) for row in rows])

    def _ready(self, message: Ready) -> None:
        if self._capabilities is None:
            self._capabilities = _capabilities(message, self._loaded_tokenizer())
        elif self._capabilities.fingerprint != message.fingerprint:
            _log.error("the model's file has changed since it was loaded first; restart the server to use it")
            self._link.kill()
            return
        self._stall_s = max(self._least_stall_s, SLOW_STEPS * message.step_s)
        self._state, self._progress, self._failures = State.READY, 1.0, 0
        self._moved = self._clock()
        self._in_flight.up()
        self._watch()

    def _died(self, error: Exception | None) -> None:
        self._past, self._counts, self._pages = _sum(self._past, self._counts), Counts(), Pages()
        self._running = self._waiting = 0
        self._failures += self._state is not State.READY
        if not self._link.restarts or self._capabilities is None:  # it never worked: whoever started it is told why
            self._state, self._failure = State.DEAD, error
            self._end_all(Finish.ERROR, _DIED)
            return
        wait = pause(self._failures)
        _log.error("%s It is started again%s.", error or "the engine ended.", f" in {wait:g} s" if wait else "")
        self._in_flight.down()
        if self._failures < GIVEN_UP:
            self._state, self._progress = State.LOADING, 0.0
        else:
            self._state = State.DEAD
            self._end_all(Finish.ERROR, _DIED)
        self._later("restart", wait, self._restart)

    def _restart(self) -> None:
        self._moved = self._clock()
        self._link.start(self._take)
        self._watch()

    def _end_all(self, finish: Finish, error: str = "") -> None:
        self._in_flight.end_all(finish, error)
        self._running = self._waiting = 0

    def _stalled(self) -> bool:
        return self._state is State.READY and self._in_flight.live > 0 and self._clock() - self._moved > self._stall_s

    def _watch(self) -> None:
        """Look at a worker that can be killed as long as there is work, or it is being started again."""
        if self._link.restarts and "watch" not in self._timers and (self._in_flight.live or self._state is not State.READY):
            self._looked = self._clock()
            self._later("watch", self._stall_s / _LOOKS, self._look)

    def _look(self) -> None:
        now = self._clock()
        if now - self._looked > self._stall_s / 2:  # it is this process that stood still; what the worker sent is still unread
            self._moved = now
        loading = self._state is not State.READY and "restart" not in self._timers
        if self._stalled() or (loading and now - self._moved > LOAD_STALL_S):
            _log.error("the engine has %s for %.1f s", "got no further in loading" if loading else "finished no step", now - self._moved)
            self._link.kill()
        else:
            self._watch()

    def _later(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        def run() -> None:
            del self._timers[name]
            call()

        self._timers[name] = asyncio.get_running_loop().call_later(seconds, run)


def _capabilities(ready: Ready, tokenizer: Tokenizer) -> Capabilities:
    pieces = Pieces.of(tokenizer.pieces, ready.vocab)  # logits may be wider than the tokenizer; such ids are valid and have no text
    limits = ready.context, ready.vocab, pieces, ready.max_logprobs, ready.max_sequences
    return Capabilities(ready.model, *limits, ready.fingerprint, EVERYTHING)


def _sum(past: Counts, now: Counts) -> Counts:
    return Counts(*map(add, past, now))
