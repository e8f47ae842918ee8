"""Requests on their way through the engine, and what becomes of them when it dies. Plain code over values."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quintet.backends.native.front.restarts import BLAME, LESS_BLAME, Suspects
from quintet.backends.native.front.stream import Stream
from quintet.backends.native.wire.messages import Abort, Submit
from quintet.events import Finish, TokenEvent

INTERRUPTED = "The engine failed while it was working on this request."
"""Reason of a request of which a part had been delivered already."""

REFUSED = "The engine failed twice while it was working on this request; it is not tried again."
"""Reason of a request that is taken for the cause."""


UNSENDABLE = "The engine cannot take this request."


@dataclass(slots=True, eq=False)
class Flight:
    """A request that has not ended.

    Args:
        aborts: what was called off: sequences, or all (``None``).
        sent: the engine that runs now was told of it.
        computed: that engine has begun with it.
    """

    submit: Submit
    stream: Stream
    aborts: list[int | None] = field(default_factory=list)
    sent: bool = False
    computed: bool = False


class Flights:
    """All requests that have not ended.

    After a death those that were being computed are suspects. They are run again one at a time, each until its first token, so
    that a second death shows which of them it was.

    Args:
        send: tells the engine.
        clock: seconds, monotonic.
        digest: of what a request asks for.
    """

    def __init__(self, send: Callable[[Submit | Abort], None], clock: Callable[[], float], digest: Callable[[Submit], bytes]) -> None:
        self._tell, self._clock, self._digest = send, clock, digest
        self._flights: dict[int, Flight] = {}
        self._suspects = Suspects()
        self._held: deque[Flight] = deque()  # suspects that wait for their turn
        self._trial: Flight | None = None
        self._up = False
        self._lives: Counter[str] = Counter()  # sequences that have not ended, by tenant

    @property
    def live(self) -> int:
        """Sequences that have not ended."""
        return self._lives.total()

    def live_of(self, tenant: str) -> int:
        """Those of a tenant."""
        return self._lives[tenant]

    def add(self, submit: Submit, stream: Stream) -> None:
        """Take a request up; one that must not run ends at once."""
        flight = Flight(submit, stream)
        self._flights[submit.request_id] = flight
        self._lives[submit.tenant] += stream.open
        self._admit(flight)
        self._next()

    def abort(self, request_id: int, seq: int | None) -> None:
        """Call a request, or one of its sequences, off."""
        flight = self._flights.get(request_id)
        if flight is None:
            return
        flight.aborts.append(seq)
        if flight.sent:
            self._tell(Abort(request_id, seq))
        elif seq is None:
            self._end(flight, Finish.ABORT)

    def begin(self, requests: Sequence[int]) -> None:
        """The engine begins to compute these."""
        for request_id in requests:
            if flight := self._flights.get(request_id):
                flight.computed = True

    def push(self, request_id: int, batch: Sequence[TokenEvent]) -> None:
        """A request's events of one step."""
        flight = self._flights[request_id]
        before = flight.stream.open
        flight.stream.push(batch)
        self._ended(flight, before - flight.stream.open)
        if not flight.stream.open:
            del self._flights[request_id]
            if self._suspects and batch[-1].finish in (Finish.EOS, Finish.LENGTH):
                self._suspects.clear(self._digest(flight.submit))
        if flight is self._trial:
            self._trial = None
            self._next()

    def up(self) -> None:
        """An engine is ready: tell it what there is to do."""
        self._up = True
        for flight in list(self._flights.values()):
            self._admit(flight)
        self._next()

    def down(self) -> None:
        """The engine is gone: end what it took with it, and keep what can be run again without anybody noticing."""
        computed = [flight for flight in self._flights.values() if flight.computed]
        # In this order, so that of equal requests the one with more blame counts.
        shares = {self._digest(flight.submit): LESS_BLAME for flight in computed if flight.stream.delivered}
        shares |= {self._digest(flight.submit): BLAME for flight in computed if not flight.stream.delivered}
        self._suspects.blame(shares, self._clock())
        self._up, self._trial = False, None
        self._held.clear()
        for flight in list(self._flights.values()):
            flight.sent = flight.computed = False
            if flight.stream.delivered:
                self._end(flight, Finish.ERROR, INTERRUPTED)
            elif None in flight.aborts:
                self._end(flight, Finish.ABORT)

    def end_all(self, finish: Finish, error: str = "") -> None:
        """End every request."""
        for flight in list(self._flights.values()):
            self._end(flight, finish, error)

    def _admit(self, flight: Flight) -> None:
        """Send it now, or later, or never."""
        if self._suspects and self._suspects.suspected(digest := self._digest(flight.submit), self._clock()):
            if self._suspects.blocked(digest, self._clock()):
                self._end(flight, Finish.ERROR, REFUSED)
            elif self._up:
                self._held.append(flight)
        elif self._up:
            self._send(flight)

    def _next(self) -> None:
        """The next suspect's turn, if it is."""
        while self._up and self._trial is None and self._held:
            flight = self._held.popleft()
            if flight.stream.open:
                self._send(flight)
                self._trial = flight if flight.sent else None

    def _send(self, flight: Flight) -> None:
        try:
            self._tell(flight.submit)
        except (OverflowError, ValueError):  # a number that no message can hold must not be left here without an end
            self._end(flight, Finish.ERROR, UNSENDABLE)
            return
        flight.sent = True
        for seq in flight.aborts:
            self._tell(Abort(flight.submit.request_id, seq))

    def _end(self, flight: Flight, finish: Finish, error: str = "") -> None:
        self._ended(flight, flight.stream.open)
        del self._flights[flight.submit.request_id]
        flight.stream.end(finish, error)

    def _ended(self, flight: Flight, count: int) -> None:
        tenant = flight.submit.tenant
        self._lives[tenant] -= count
        if not self._lives[tenant]:
            del self._lives[tenant]
