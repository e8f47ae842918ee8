"""Keeps an engine's worker alive: starts it, watches it, kills one that hangs, starts one that died again.

::

                 Ready                    Died                        Died, for the GIVEN_UP-th time in a row
    LOADING --------------> READY ----------------> LOADING (again) ------------------------------------------> DEAD, and tried on

    state     Ready             Died                                                          close
    LOADING   READY, work up    never was ready: DEAD for good, everything ends               CLOSED, everything ends
                                else: started again after a pause; GIVEN_UP: DEAD
    READY     -                 LOADING, work down, started again after a pause               CLOSED, everything ends
    DEAD      READY             DEAD, everything ends, started again after a pause            CLOSED
    CLOSED    nothing is heard any more

The first starts follow a death at once; how long others wait depends on how many starts in a row failed, and on how many deaths there were
lately (``restarts``). ``STALLED`` is ``READY`` seen from outside while nothing moves, though work waits or the worker was asked;
``UNSOUND`` while nothing that it computes is a number, and a new start has not helped (``soundness``); ``DRAINING`` is a matter of the
verbs (``engine``).

At a death, what clients have seen decides (``in_flight``): a request of which a part was shown breaks off, every other is run again, and
goes on where it was (``repeat``); those that were being computed one at a time, for one of them may be the cause. A link that cannot
restart its worker (a thread's) dies with it, and so does an engine that never was ready: whoever started it is told why. Reasons:
docs/decisions/0005-two-processes.md.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from quintet import machine
from quintet.backends.base import Health, Incidents, State
from quintet.backends.native.front.expanding import Expanding
from quintet.backends.native.front.in_flight import InFlight, InFlightRequest
from quintet.backends.native.front.link import Link
from quintet.backends.native.front.pace import Pace
from quintet.backends.native.front.pressure import Pressure
from quintet.backends.native.front.repeat import Told
from quintet.backends.native.front.restarts import GIVEN_UP, OFTEN, WINDOW_S, Deaths, Suspects, pause
from quintet.backends.native.front.soundness import UNSOUND_AT
from quintet.backends.native.front.statistics import Statistics
from quintet.backends.native.front.stream import Stream
from quintet.backends.native.front.watchdog import LOAD_STALL_S, STALL_S, Watchdog
from quintet.backends.native.wire.messages import Died, Expanded, FromWorker, Ping, Progress, Ready, Shed, Started, Stepped, Submit, Wanted
from quintet.events import Finish
from quintet.inputs.capabilities import Capabilities
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
        chance: see ``Pace``.
        memory: see ``Pressure``.
        images: see ``Expanding``.
        watched: the first worker is killed too where it says nothing while it loads.
    """

    def __init__(
        self,
        link: Link,
        work: InFlight,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], Timer] = call_later,
        stall_s: float = STALL_S,
        chance: Callable[[], float] = random.random,
        memory: Callable[[], tuple[int, int]] = machine.memory,
        images: Suspects | None = None,
        *,
        watched: bool = False,
    ) -> None:
        self._link, self._work, self._clock, self._call_later = link, work, clock, later
        self._watched_first = watched
        self._statistics = Statistics()
        self._watchdog = Watchdog(clock(), stall_s)
        self._pace = Pace(clock(), chance)
        self._pressure = Pressure(memory)
        self._deaths = Deaths()
        self.expanding = Expanding(link.send, clock, images)
        """Images that the worker's own processor is asked about."""
        self._failures = 0  # starts in a row that did not reach readiness
        self._killed = ""  # which of the ``Incidents`` the worker was killed for
        self._incidents = Incidents()
        self._unsound = False  # as was told last
        self._timers: dict[str, Timer] = {}
        self._restart_at = 0.0  # while it is waited for
        self.state = State.LOADING
        """Without ``STALLED`` and ``DRAINING``."""
        self.progress = 0.0
        """Share of loading done, 0 to 1."""
        self.capabilities: Capabilities | None = None
        """Of the model, once it was loaded for the first time."""
        self.failure: Exception | None = None
        """Why there never was an engine: a ``ModelError`` can be told as it is."""
        link.start(self._take)
        self._watch()

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's, while there is an engine that is ready."""
        return self._link.tokenizer if self.state is State.READY else None

    @property
    def stalled(self) -> bool:
        """The worker does not get on with its work, or does not answer."""
        idle = not self._work.live
        return self.state is State.READY and (self._watched or not idle) and self._watchdog.stalled(self._clock(), idle=idle)

    @property
    def tried_on(self) -> bool:
        """An engine that is dead is started again: it was ready once."""
        return self._link.restarts and self.capabilities is not None

    @property
    def _watched(self) -> bool:
        """Its worker is looked at, and killed if it hangs. One that loads for the first time is only where that was asked for."""
        return self._link.restarts and self.failure is None and (self._watched_first or self.capabilities is not None)

    def health(self, *, draining: bool) -> Health:
        """What the worker does, and what it and those before it did.

        Args:
            draining: nothing else is taken.
        """
        state = self.seen(draining=draining)
        retry = self.retry_after(0, draining=draining) if state is not State.READY else 0.0
        incidents = self._incidents._replace(quarantined=self._work.refused)
        health = self._statistics.health(state, self.progress)
        return replace(health, incidents=incidents, retry_after=retry, memory=self._pressure.usage, pid=self._link.pid)

    def seen(self, *, draining: bool) -> State:
        """The state as others see it, without counting up what was done: every request asks for it."""
        if draining and self.state is not State.CLOSED:
            return State.DRAINING
        if self.stalled:
            return State.STALLED
        return State.UNSOUND if self.state is State.READY and self._work.soundness.unsound else self.state

    def retry_after(self, ends: int, *, draining: bool) -> float:
        """Seconds after which a client that is refused now is to come again.

        Args:
            ends: sequences that have to end before its turn, where the engine is ready.
        """
        now = self._clock()
        if self.state is not State.READY:
            seconds = self._pace.until_ready(now, self._restart_at if "restart" in self._timers else None, self.progress)
        elif draining:  # by then there is another server, or none
            seconds = self._pace.until_done(self._work.live) + self._pace.load_s
        else:
            seconds = self._pace.until_done(ends)
        return self._pace.told(seconds)

    def short_of_memory(self) -> bool:
        """Nothing new is taken now; who asks is one who is refused."""
        if self._pressure.short:
            self._count("short")
        return self._pressure.short

    def drain(self) -> None:
        """Nothing more will come; a worker that hangs is to hold up the end for less long."""
        self._watchdog.hurry()

    def run(self, submit: Submit, stream: Stream, pixels: Mapping[bytes, bytes] | None = None, *, shown: bool = True) -> None:
        """Have a request computed, now or by the next worker; in ``DEAD`` and ``CLOSED`` it ends at once.

        Args:
            pixels: of its images, by their digests.
            shown: see ``Prepared``.
        """
        self.take(InFlightRequest(submit, stream, pixels=pixels or {}, told=None if shown else Told()))

    def take(self, request: InFlightRequest) -> None:
        """As ``run``, of what another engine has let go of, or a new one."""
        if self.state is State.DEAD:
            request.stream.end(Finish.ERROR, DIED)
        elif self.state is State.CLOSED:
            request.stream.end(Finish.ABORT)
        else:
            if not self._work.live and not self._watched:  # an idle engine that is not asked does not move
                self._watchdog.moved(self._clock())
            self._work.take(request)
            self._update_pace()

    async def close(self) -> None:
        """End all work and the worker. Idempotent."""
        if self.state is not State.CLOSED:
            self.state = State.CLOSED
            for timer in self._timers.values():
                timer.cancel()
            self._end_all(Finish.ABORT)
            self.expanding.down()
        await self._link.close()

    def _take(self, message: FromWorker) -> None:
        if self.state is State.CLOSED:
            return
        match message:
            case Stepped():
                self._stepped(message)
            case Started(requests):
                self._work.begin(requests)
            case Wanted(request_id, digest):
                self._work.want(request_id, digest)
            case Expanded():
                self.expanding.take(message)
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
            self._check_soundness()
        self._update_pace()

    def _check_soundness(self) -> None:
        """Whether what was computed are numbers: a worker that has lost them is started again, once until it has them again."""
        soundness = self._work.soundness
        if soundness.unsound is self._unsound:
            return
        self._unsound = soundness.unsound
        if not self._unsound:
            _log.warning("the engine computes finite values again")
        elif self._link.restarts and not soundness.renewed:
            _log.error("%d different prompts in a row gave values that are not finite: the engine's memory may be broken.", UNSOUND_AT)
            self._unsound = False
            self._kill("unsound")
        else:
            _log.error("%d different prompts in a row gave values that are not finite; the engine is unsound.", UNSOUND_AT)

    def _update_pace(self) -> None:
        self._pace.see(self._clock(), self._work.ended, working=self._work.live > 0 and self.state is State.READY)

    def _ready(self, message: Ready) -> None:
        if self.capabilities is None:
            self.capabilities = _capabilities(message, self._link.tokenizer)
        elif self.capabilities.fingerprint != message.fingerprint:
            _log.error("the model's file has changed since it was loaded first; restart the server to use it")
            self._kill("changed")
            return
        self.state, self.progress, self._failures = State.READY, 1.0, 0
        self._watchdog.ready(self._clock(), message.step_s)
        self._pace.ready(self._clock())
        self._work.up()
        self._watch()

    def _died(self, message: Died) -> None:
        self._statistics.died()
        self.expanding.down()
        self._failures += self.state is not State.READY
        if self._watched:
            self._count("unstarted" if not message.started else self._killed or "crashed")
        if not self.tried_on:
            self.state, self.failure = State.DEAD, message.error
            self._end_all(Finish.ERROR, DIED)
            return
        unsound, self._killed = self._killed == "unsound", ""
        deaths = self._deaths.add(self._clock())
        wait = pause(self._failures, deaths)
        often = f", for it has ended {deaths} times in {WINDOW_S / 60:.0f} minutes" if deaths >= OFTEN else ""
        _log.error("%s It is started again%s%s.", message.reason or "the engine ended.", f" in {wait:g} s" if wait else "", often)
        broken = self._work.down(unsound=unsound)
        if self._failures < GIVEN_UP:
            self.state, self.progress = State.LOADING, 0.0
            if broken or len(self._work):
                _log.warning("of the engine's requests %d broke off, and %d are run again", broken, len(self._work))
        else:
            self.state = State.DEAD
            self._end_all(Finish.ERROR, DIED)
        self._restart_at = self._clock() + wait
        self._later("restart", wait, self._restart)

    def _restart(self) -> None:
        self._watchdog.moved(self._clock())
        self._pace.begin(self._clock())
        self._link.start(self._take)

    def _end_all(self, finish: Finish, error: str = "") -> None:
        self._work.end_all(finish, error)
        self._statistics.idle()

    def _watch(self) -> None:
        """Look at the worker again after a while, and ask one that has nothing to do; to ``close`` without end."""
        if self._watched and "watch" not in self._timers:
            now, idle = self._clock(), self.state is State.READY and not self._work.live
            if idle:
                self._link.send(Ping())
            wait = self._watchdog.pause_s(idle=idle)
            self._watchdog.watch(now, wait)
            self._later("watch", wait, self._look)

    def _look(self) -> None:
        now = self._clock()
        self._watchdog.look(now)
        still = self._watchdog.still(now)
        loading = self._watched and self.state is not State.READY and "restart" not in self._timers
        if self.stalled or (loading and still > LOAD_STALL_S):
            what = "got no further in loading" if loading else "finished no step" if self._work.live else "not answered"
            _log.error("the engine has %s for %.1f s", what, still)
            self._kill("hung")
        elif self.state is State.READY and self._pressure.look(now):
            _log.warning("memory runs short (%.0f %% is in use): the engine gives back what it keeps", 100 * self._pressure.usage)
            self._count("shed")
            self._link.send(Shed())
        self._watch()

    def _kill(self, why: str) -> None:
        self._killed = why
        self._link.kill()

    def _count(self, what: str) -> None:
        self._incidents = self._incidents._replace(**{what: getattr(self._incidents, what) + 1})

    def _later(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        def run() -> None:
            del self._timers[name]
            call()

        self._timers[name] = self._call_later(seconds, run)


def _capabilities(ready: Ready, tokenizer: Tokenizer | None) -> Capabilities:
    assert tokenizer is not None, "there is one before ``Ready``"
    pieces = Pieces.of(tokenizer.pieces, ready.vocab)  # logits may be wider than the tokenizer; such ids are valid and have no text
    return Capabilities(
        model=ready.model,
        context=ready.context,
        vocab=ready.vocab,
        pieces=pieces,
        max_logprobs=ready.max_logprobs,
        max_sequences=ready.max_sequences,
        fingerprint=ready.fingerprint,
        supported=ready.supported,
        images=ready.processor or ready.images,
    )
