"""Keeps an engine's worker alive: starts it, watches it, kills one that hangs, starts one that died again.

::

                 Ready                    Died                        Died, for the GIVEN_UP-th time in a row
    LOADING --------------> READY ----------------> LOADING (again) ------------------------------------------> DEAD, and tried on

    state     Ready             Died                                                          close
    LOADING   READY, work up    never was ready: DEAD for good, everything ends               CLOSED, everything ends
                                else: started again after pause(failures); GIVEN_UP: DEAD
    READY     -                 LOADING, work down, started again                             CLOSED, everything ends
    DEAD      READY             DEAD, everything ends, started again after pause(failures)    CLOSED
    CLOSED    nothing is heard any more

``STALLED`` is ``READY`` seen from outside while work waits and nothing moves; ``DRAINING`` is a matter of the verbs (``engine``).

At a death, what clients have seen decides (``in_flight``): a request of which a part was delivered breaks off, every other is run again,
those that were being computed one at a time, for one of them may be the cause. A link that cannot restart its worker (a thread's) dies with
it, and so does an engine that never was ready: whoever started it is told why. Reasons: docs/decisions/0005-two-processes.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from quintet.backends.base import Health, State
from quintet.backends.native.front.in_flight import InFlight
from quintet.backends.native.front.link import Link
from quintet.backends.native.front.restarts import GIVEN_UP, pause
from quintet.backends.native.front.statistics import Statistics
from quintet.backends.native.front.stream import Stream
from quintet.backends.native.front.watchdog import LOAD_STALL_S, STALL_S, Watchdog
from quintet.backends.native.wire.messages import Died, FromWorker, Progress, Ready, Started, Stepped, Submit
from quintet.events import Finish
from quintet.inputs.capabilities import EVERYTHING, Capabilities
from quintet.inputs.tokenizer import Tokenizer
from quintet.models.pieces import Pieces

DIED = "The engine has failed."
_log = logging.getLogger(__name__)


class Timer(Protocol):
    """What will be called."""

    def cancel(self) -> None:
        """It is not."""
        ...


def call_later(seconds: float, call: Callable[[], None]) -> Timer:
    """On the event loop that runs."""
    return asyncio.get_running_loop().call_later(seconds, call)


class Supervisor:
    """One engine's worker, through all its lives. Loading begins at once.

    Args:
        link: to the worker.
        work: the requests in flight, told of what becomes of the worker.
        clock: seconds, monotonic.
        later: calls something after some seconds, once.
        stall_s: see ``STALL_S``.
    """

    def __init__(
        self,
        link: Link,
        work: InFlight,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], Timer] = call_later,
        stall_s: float = STALL_S,
    ) -> None:
        self._link, self._work, self._clock, self._call_later = link, work, clock, later
        self._statistics = Statistics()
        self._watchdog = Watchdog(clock(), stall_s)
        self._failures = 0  # starts in a row that did not reach readiness
        self._timers: dict[str, Timer] = {}
        self.state = State.LOADING
        """Without ``STALLED`` and ``DRAINING``."""
        self.progress = 0.0
        """Share of loading done, 0 to 1."""
        self.capabilities: Capabilities | None = None
        """Of the model, once it was loaded for the first time."""
        self.failure: Exception | None = None
        """Why there never was an engine: a ``ModelError`` can be told as it is."""
        link.start(self._take)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's, while there is an engine that is ready."""
        return self._link.tokenizer if self.state is State.READY else None

    @property
    def stalled(self) -> bool:
        """Work waits, and the worker does not get on with it."""
        return self.state is State.READY and self._work.live > 0 and self._watchdog.stalled(self._clock())

    def health(self, *, draining: bool) -> Health:
        """What the worker does, and what it and those before it did.

        Args:
            draining: nothing else is taken.
        """
        return self._statistics.health(self.seen(draining=draining), self.progress)

    def seen(self, *, draining: bool) -> State:
        """The state as others see it, without counting up what was done: every request asks for it."""
        if draining and self.state is not State.CLOSED:
            return State.DRAINING
        return State.STALLED if self.stalled else self.state

    def run(self, submit: Submit, stream: Stream) -> None:
        """Have a request computed, now or by the next worker; in ``DEAD`` and ``CLOSED`` it ends at once."""
        if self.state is State.DEAD:
            stream.end(Finish.ERROR, DIED)
        elif self.state is State.CLOSED:
            stream.end(Finish.ABORT)
        else:
            if not self._work.live:  # an idle engine does not move
                self._watchdog.moved(submit.at)
            self._work.add(submit, stream)
            self._watch()

    async def close(self) -> None:
        """End all work and the worker. Idempotent."""
        if self.state is not State.CLOSED:
            self.state = State.CLOSED
            for timer in self._timers.values():
                timer.cancel()
            self._end_all(Finish.ABORT)
        await self._link.close()

    def _take(self, message: FromWorker) -> None:
        if self.state is State.CLOSED:
            return
        match message:
            case Stepped():
                self._stepped(message)
            case Started(requests):
                self._work.begin(requests)
            case Progress(share):
                self.progress = share
                self._watchdog.moved(self._clock())
            case Ready():
                self._ready(message)
            case Died():
                self._died(message)

    def _stepped(self, message: Stepped) -> None:
        moved = self._watchdog.stepped if self._statistics.update(message) else self._watchdog.moved
        moved(self._clock())
        if message.events:
            assert self.capabilities is not None
            pieces = self.capabilities.pieces
            for request_id, rows in message.events.items():
                self._work.push(request_id, [row.event(pieces) for row in rows])

    def _ready(self, message: Ready) -> None:
        if self.capabilities is None:
            self.capabilities = _capabilities(message, self._link.tokenizer)
        elif self.capabilities.fingerprint != message.fingerprint:
            _log.error("the model's file has changed since it was loaded first; restart the server to use it")
            self._link.kill()
            return
        self.state, self.progress, self._failures = State.READY, 1.0, 0
        self._watchdog.ready(self._clock(), message.step_s)
        self._work.up()
        self._watch()

    def _died(self, message: Died) -> None:
        self._statistics.died()
        self._failures += self.state is not State.READY
        if not self._link.restarts or self.capabilities is None:
            self.state, self.failure = State.DEAD, message.error
            self._end_all(Finish.ERROR, DIED)
            return
        wait = pause(self._failures)
        _log.error("%s It is started again%s.", message.reason or "the engine ended.", f" in {wait:g} s" if wait else "")
        self._work.down()
        if self._failures < GIVEN_UP:
            self.state, self.progress = State.LOADING, 0.0
        else:
            self.state = State.DEAD
            self._end_all(Finish.ERROR, DIED)
        self._later("restart", wait, self._restart)

    def _restart(self) -> None:
        self._watchdog.moved(self._clock())
        self._link.start(self._take)
        self._watch()

    def _end_all(self, finish: Finish, error: str = "") -> None:
        self._work.end_all(finish, error)
        self._statistics.idle()

    def _watch(self) -> None:
        """Look at a worker that can be started again, as long as there is work or it is being started. The first start is not watched."""
        watched = self._link.restarts and self.capabilities is not None
        if watched and "watch" not in self._timers and (self._work.live or self.state is not State.READY):
            self._watchdog.watch(self._clock())
            self._later("watch", self._watchdog.pause_s, self._look)

    def _look(self) -> None:
        now = self._clock()
        self._watchdog.look(now)
        still = self._watchdog.still(now)
        loading = self.state is not State.READY and "restart" not in self._timers
        if self.stalled or (loading and still > LOAD_STALL_S):
            _log.error("the engine has %s for %.1f s", "got no further in loading" if loading else "finished no step", still)
            self._link.kill()
        else:
            self._watch()

    def _later(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        def run() -> None:
            del self._timers[name]
            call()

        self._timers[name] = self._call_later(seconds, run)


def _capabilities(ready: Ready, tokenizer: Tokenizer | None) -> Capabilities:
    assert tokenizer is not None, "there is one before ``Ready``"
    pieces = Pieces.of(tokenizer.pieces, ready.vocab)  # logits may be wider than the tokenizer; such ids are valid and have no text
    limits = ready.context, ready.vocab, pieces, ready.max_logprobs, ready.max_sequences
    return Capabilities(ready.model, *limits, ready.fingerprint, EVERYTHING)
