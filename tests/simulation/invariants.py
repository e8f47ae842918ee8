"""What is promised to whoever asks, and of the engine as a whole, checked at every event of a simulation as it happens.

- A request ends exactly once, in a time that is bounded, for the reason that there is; nothing comes after its end.
- What was called off is not gone on with.
- What it is told is what it would be told alone (``model.alone``), event for event, to its end or as far as it got.
- At a death, what was shown a part, or told one and computed at a death before, breaks off with an error. All else is run again, and
  goes on where it was, unless it is taken for the cause.
- Nobody is taken for the cause of a death who was not being computed at two of them.
- The engine's state changes only as the supervisor's table says, and counts never go down.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.asked import Asked, asking
from tests.simulation.clock import SimulatedLoop, Violation
from tests.simulation.model import CRASHES, RAISES, Told, alone
from tests.simulation.poison import Poisonings

from quintet.backends.base import Counts, State
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.in_flight import INTERRUPTED, REFUSED
from quintet.backends.native.front.soundness import UNSOUND_AT
from quintet.backends.native.front.stream import Stream
from quintet.backends.native.front.supervisor import DIED
from quintet.backends.native.front.watchdog import LOAD_STALL_S
from quintet.backends.native.schedule.emit import FAILED, NUMERICAL
from quintet.backends.native.wire.messages import Died, EventRow, FromWorker, Ready, ScoredRow, Started, Stepped
from quintet.errors import EngineFailed, Loading, RequestError, ServerError, TooManyRequests
from quintet.events import Finish, TokenEvent
from quintet.inputs.sequence import Prepared, PreparedSequence

STATES = {
    (State.LOADING, "Ready"): {State.READY},
    (State.LOADING, "Died"): {State.LOADING, State.DEAD},
    (State.READY, "Died"): {State.LOADING},
    (State.READY, "Stepped"): {State.READY, State.LOADING},  # a worker that has lost its numbers is ended
    (State.DEAD, "Ready"): {State.READY},
    (State.DEAD, "Died"): {State.DEAD},
}
"""The supervisor's table: what each message may make of the state. Any other changes nothing."""

RESTART_S = 60.0
"""Most that a death costs: the longest pause before a start, and one that goes well."""

AT_LAST_S = 7200.0
"""Whatever goes wrong, and for however long: no request takes longer."""


class Watch:
    """Sees everything, and keeps a trace of it.

    Args:
        bound_s: seconds in which a request ends where nothing goes wrong.
        abort_s: in which nothing more comes of what was called off.
        most_live: sequences that the engine takes.
        window: see ``alone``.
    """

    def __init__(self, loop: SimulatedLoop, bound_s: float, abort_s: float, most_live: int, window: int) -> None:
        self._loop, self._window = loop, window
        self._bound_s, self._abort_s, self.most_live = bound_s, abort_s, most_live
        self.engine: Engine | None = None
        self.was_ready = False
        self.closing = False
        self.lines: list[tuple[Any, ...]] = []
        self.requests: dict[int, Asked] = {}  # those that have not ended
        self.ends: Counter[str] = Counter()
        self.deaths = self.poisoned = self.given = 0
        self._dying = False
        self._raised = False  # a step of this worker, by chance
        self._broken = False  # this worker's memory
        self._renewed = False  # the worker before was ended for that, and no token has come since
        self._numberless: set[tuple[tuple[int, ...], ...]] = set()  # prompts that came to nothing in this worker since a token came
        self._started: set[int] = set()  # requests that this worker has begun with
        self._blame: Counter[tuple[PreparedSequence, ...]] = Counter()  # deaths over a request, by what it asks
        self._poisonings = Poisonings()
        self._over_poison = False  # this worker's death
        self._excused = 0.0  # seconds, in all
        self._slow = 0.0  # until when what has gone wrong lasts
        self._counts = Counts()
        self.moment: Callable[[], None] = lambda: None
        """Called wherever the front might be killed."""

    # ---- told by what is simulated

    def trace(self, *what: Any) -> None:
        """Something happened."""
        self.lines.append((round(self._loop.time(), 6), *what))

    def excuse(self, seconds: float) -> None:
        """Something that has gone wrong may cost everybody so long."""
        self._excused += seconds
        self._slow = max(self._slow, self._loop.time()) + seconds

    def died(self) -> None:
        """Something that has gone wrong may cost a life of the engine."""
        self.excuse(RESTART_S)

    def hangs(self, how: str) -> None:
        """The engine's process gets no further, until that is noticed."""
        assert self.engine is not None
        self.trace(how)
        self.excuse(LOAD_STALL_S + 1.1 * self.engine._supervisor._watchdog.stall_s + RESTART_S)

    def front_died(self) -> None:
        """The front is killed: nobody is told anything more of what it was given, and the next one knows nothing of its engine's deaths."""
        self.trace("the front is killed")
        self.ends["front killed"] += 1
        self.excuse(RESTART_S)
        self.requests.clear()
        self._started.clear()
        self._numberless.clear()
        self._blame.clear()
        self._poisonings.forget()
        self._counts = Counts()
        self.was_ready = self._dying = self._raised = self._broken = self._renewed = self._over_poison = False

    def step_raised(self, by_chance: bool) -> None:
        """A step has, for no request's sake, or over one that breaks any step."""
        self.trace("a step raises", by_chance)
        self._raised |= by_chance

    def breaks_memory(self) -> None:
        """From now on the worker computes nothing that is finite."""
        self.trace("its memory breaks")
        self.excuse(2 * RESTART_S)  # what it computes until that is noticed is lost
        self._broken = True

    def poison(self) -> None:
        """A request kills the engine."""
        self.trace("crashes over poison")
        self.died()
        self.poisoned += 1
        self._over_poison = True

    # ---- told by requests

    def submitting(self, prepared: Prepared) -> None:
        """The engine is about to be given a request."""
        count = len(prepared.sequences)
        self.given += 1
        expected = _expected(prepared.sequences, self._window)
        asked = Asked(prepared, self._due(self._bound_s), self._loop.time() + AT_LAST_S, expected, [0] * count, set(range(count)))
        self.requests[prepared.request_id] = asked
        asking.get().append(asked)
        self.trace("submitted", prepared.request_id, count, prepared.tenant)

    def refusing(self, refusal: Exception, count: int, tenant: str) -> None:
        """The engine takes no request."""
        assert self.engine is not None
        state, live = self.engine._supervisor.seen(draining=self.engine._draining), sum(len(one.open) for one in self.requests.values())
        own = sum(len(one.open) for one in self.requests.values() if one.prepared.tenant == tenant)
        _require(live == self.engine.live, "counts: as many are live", live, self.engine.live)
        match refusal:
            case Loading():
                holds = state in (State.LOADING, State.DEAD)
            case EngineFailed():
                holds = state is State.DEAD
            case TooManyRequests():
                holds = own > 0 and live + own + 2 * count > self.most_live  # it would not leave as much as it takes
            case _:
                holds = live + count > self.most_live or state in (State.DRAINING, State.CLOSED)
        _require(holds, f"refused: {refusal}", state.value, live, own, count)

    def aborting(self, request_id: int, seq: int | None) -> None:
        """A client calls something off."""
        if asked := self.requests.get(request_id):
            asked.called_off.setdefault(seq, self._due(self._abort_s))
            self.trace("called off", request_id, seq)

    def told(self, request_id: int, batch: Sequence[TokenEvent]) -> None:
        """A request is given events."""
        asked = self.requests.get(request_id)
        _require(asked is not None, "once: events of a request that has ended", request_id)
        assert asked is not None
        self.trace("told", request_id, *((event.seq, event.token, event.finish and event.finish.value) for event in batch))
        before = asked.told
        for event in batch:
            _require(event.seq in asked.open or event.prompt, "once: an event after the end", request_id, event.seq)
            self._check(asked, event, before)
            if event.finish:
                asked.open.discard(event.seq)
                self.ends[event.error or event.finish.value] += 1
        asked.told = True
        if not asked.open:
            self._check_age(asked)
            del self.requests[request_id]

    # ---- told by the link

    def hears(self, message: FromWorker, take: Callable[[FromWorker], None]) -> None:
        """The front is told something."""
        assert self.engine is not None
        self.moment()
        supervisor = self.engine._supervisor
        before, kind = supervisor.state, type(message).__name__
        if isinstance(message, Started):
            self._started |= set(message.requests)
        if isinstance(message, Died):
            self._death(message)
        # A worker that has lost its numbers is ended as soon as that is sure, and goes on only where ending it has not helped.
        _require(len(self._numberless) < UNSOUND_AT or self._renewed, "soundness: it goes on without numbers")
        if isinstance(message, Stepped):
            self._numbers(message)
        take(message)
        self._dying = False
        if isinstance(message, Died):
            left = [one for one in self.requests if self.requests[one].breaks_off]
            _require(not left, "breaks off: it does not, and was shown a part", *left)
        after = supervisor.state
        _require(after in STATES.get((before, kind), {before}), f"states: {before.value} became {after.value} by {kind}")
        _require(kind != "Stepped" or after is before or self._renewed, "soundness: ended, and it had numbers")
        if isinstance(message, Ready):
            self.was_ready = True
        if after is not before:
            self.trace("state", after.value)
        if isinstance(message, Died | Ready) or len(self.lines) % 16 == 0:
            self.check_counts()

    def check_counts(self) -> None:
        """
        Raises:
            Violation: one has gone down.
        """
        assert self.engine is not None
        counts = self.engine.health().counts
        rising = all(now >= before for now, before in zip(counts, self._counts, strict=True))
        _require(rising, "counts: one went down", counts, self._counts)
        self._counts = counts

    def check_ages(self) -> None:
        """
        Raises:
            Violation: a request has not ended in time.
        """
        for asked in self.requests.values():
            self._check_age(asked)

    # ---- rules

    def _death(self, message: Died) -> None:
        self.trace("died", message.reason)
        self.deaths += 1
        self._dying = True
        computed = [self.requests[request_id] for request_id in sorted(self._started & self.requests.keys())]
        self._blame.update({asked.what for asked in computed})
        for asked in computed:
            asked.deaths += 1
        if self._over_poison:
            poisonous = ((asked.what, asked.prepared.tenant) for asked in computed if asked.asks(CRASHES))
            self._poisonings.add(poisonous, self._loop.time())
        self._started.clear()
        self._raised = self._broken = self._over_poison = False
        self._renewed |= len(self._numberless) >= UNSOUND_AT
        self._numberless.clear()

    def _check(self, asked: Asked, event: TokenEvent, before: bool) -> None:
        request_id, expected, at = asked.prepared.request_id, asked.expected[event.seq], asked.at[event.seq]
        told = (event.token, event.piece, event.logprob, event.top, event.prompt, event.finish, event.error)
        if at < len(expected) and told == expected[at]:
            asked.at[event.seq] += 1
            # A prompt's tokens are told once for all of its sequences, under the first one's number, whether that goes on or not.
            those = (None,) if event.prompt else (None, event.seq)
            until = min((at for seq, at in asked.called_off.items() if seq in those), default=math.inf)
            _require(self._loop.time() <= until + self._excused, "aborted: it goes on", request_id, event.seq)
            return
        self._require_cause(asked, event, before)
        natural = event.finish in (None, Finish.EOS, Finish.LENGTH)
        _require(not natural, "bytes: not what it is told alone", request_id, event.seq, at, told, expected[at : at + 1])

    def _require_cause(self, asked: Asked, event: TokenEvent, before: bool) -> None:
        """An end that the sequence alone does not come to has its reason."""
        request_id, error = asked.prepared.request_id, event.error
        if event.finish is Finish.ABORT:
            _require(bool(asked.called_off.keys() & {None, event.seq}) or self.closing, "aborted: nobody has called it off", request_id)
        elif error == INTERRUPTED:
            _require(self._dying and before and asked.breaks_off, "breaks off: it could be run again", request_id)
        elif error == REFUSED:
            _require(self._blame[asked.what] >= 2, "quarantine: not computed at two deaths", request_id)
            _require(asked.asks(CRASHES) or self.deaths > self.poisoned, "quarantine: refused for what another has done", request_id)
        elif error == DIED:
            _require(self.engine is not None and self.engine._supervisor.state is State.DEAD, "dead: it is not", request_id)
        elif error == FAILED:
            _require(self._raised or asked.asks(RAISES), "step: another broke it", request_id)
        elif event.finish is Finish.ERROR and error != NUMERICAL:
            raise Violation(f"ends: request {request_id} with {error!r}")
        if error == NUMERICAL:
            _require(self._broken, "ends: a request has finite numbers", request_id)

    def _numbers(self, message: Stepped) -> None:
        """Who comes to nothing, in a row, without a token meanwhile: also without one that is computed again, and told to nobody."""
        for request_id, rows in message.events.items():
            asked = self.requests.get(request_id)
            if asked is None:
                continue
            if any(row.token >= 0 and not (isinstance(row, ScoredRow | EventRow) and row.prompt) for row in rows):
                self._numberless.clear()
                self._renewed = False
            if isinstance(last := rows[-1], EventRow) and last.error == NUMERICAL:
                self._numberless.add(tuple(dict.fromkeys(one.tokens for one in asked.prepared.sequences)))

    def _check_age(self, asked: Asked) -> None:
        late = self._loop.time() - min(asked.due + self._excused, asked.at_last)
        _require(late <= 0, f"time: {late:.1f} s over what it may take", asked.prepared.request_id)

    def _due(self, seconds: float) -> float:
        return max(self._loop.time(), self._slow) + seconds - self._excused


def _expected(sequences: Sequence[PreparedSequence], window: int) -> list[list[Told]]:
    """What each is told. A prompt that several have is told once, as the first one's, even if that has ended."""
    told, firsts = [alone(one, window) for one in sequences], set()
    for number, one in enumerate(sequences):
        prompt = one.tokens, one.echo_from, one.logprobs, one.salt
        if prompt in firsts:
            told[number] = [event for event in told[number] if not event[4]]
        firsts.add(prompt)
    return told


class WatchedStream(Stream):
    """See ``Stream``, whose place it takes."""

    def __init__(self, watch: Watch, count: int) -> None:
        super().__init__(count)
        self._watch = watch
        self._request = next(reversed(watch.requests))  # the one that is being submitted

    def push(self, events: Sequence[TokenEvent]) -> int:
        self._watch.told(self._request, events)
        return super().push(events)


class WatchedEngine(Engine):
    """An engine whose requests are known to the watch."""

    def __init__(self, watch: Watch, *args: Any, **more: Any) -> None:
        self._watch = watch
        super().__init__(*args, **more)

    def require_room(self, count: int, tenant: str = "", *, begun: bool = False) -> None:
        try:
            super().require_room(count, tenant, begun=begun)
        except (RequestError, ServerError) as refusal:
            self._watch.refusing(refusal, count, tenant)
            raise

    def submit(self, prepared: Prepared) -> Any:
        self._watch.submitting(prepared)
        return super().submit(prepared)

    def abort(self, request_id: int, seq: int | None = None) -> None:
        self._watch.aborting(request_id, seq)
        super().abort(request_id, seq)


def _require(holds: bool, otherwise: str, *about: object) -> None:
    if not holds:
        raise Violation(f"{otherwise} {about if about else ''}".rstrip())
