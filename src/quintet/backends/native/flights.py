"""Requests on their way through the engine, and what becomes of them when it dies. Plain code over values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from quintet.backends.native.messages import Abort, Submit
from quintet.backends.native.restarts import Suspects
from quintet.backends.native.stream import Stream
from quintet.events import Finish, TokenEvent

INTERRUPTED = "The engine failed while it was working on this request."
"""Reason of a request of which a part had been delivered already."""

REFUSED = "The engine failed twice while it was working on this request; it is not tried again."
"""Reason of a request that is taken for the cause."""


@dataclass(slots=True, eq=False)
class Flight:
    """A request that has not ended.

    Args:
        aborts: what was called off: sequences, or all (``None``).
        computed: the engine that runs now has begun with it.
    """

    submit: Submit
    stream: Stream
    aborts: list[int | None] = field(default_factory=list)
    computed: bool = False


class Flights:
    """All requests that have not ended.

    Args:
        clock: seconds, monotonic.
        digest: of what a request asks for.
    """

    def __init__(self, clock: Callable[[], float], digest: Callable[[Submit], bytes]) -> None:
        self._clock, self._digest = clock, digest
        self._flights: dict[int, Flight] = {}
        self._suspects = Suspects()
        self._live = 0

    @property
    def live(self) -> int:
        """Sequences that have not ended."""
        return self._live

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._flights

    def add(self, submit: Submit, stream: Stream) -> bool:
        """Take a request up; False if it must not run, and has been told so."""
        if self._suspects and self._suspects.blocked(self._digest(submit), self._clock()):
            stream.end(Finish.ERROR, REFUSED)
            return False
        self._flights[submit.request_id] = Flight(submit, stream)
        self._live += stream.open
        return True

    def abort(self, request_id: int, seq: int | None) -> None:
        """Remember it, in case the engine dies before it is done."""
        self._flights[request_id].aborts.append(seq)

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
        self._live -= before - flight.stream.open
        if not flight.stream.open:
            del self._flights[request_id]
            if self._suspects and batch[-1].finish is not Finish.ERROR:
                self._suspects.clear(self._digest(flight.submit))

    def died(self) -> None:
        """The engine is gone: end what it took with it, and keep what can be run again without anybody noticing."""
        now = self._clock()
        computed = {flight.submit.request_id: self._digest(flight.submit) for flight in self._flights.values() if flight.computed}
        self._suspects.blame(set(computed.values()), now)
        for flight in list(self._flights.values()):
            digest = computed.get(flight.submit.request_id)
            if flight.stream.delivered:
                self._end(flight, Finish.ERROR, INTERRUPTED)
            elif None in flight.aborts:
                self._end(flight, Finish.ABORT)
            elif digest is not None and self._suspects.blocked(digest, now):
                self._end(flight, Finish.ERROR, REFUSED)
            flight.computed = False

    def again(self) -> Iterator[Submit | Abort]:
        """What a new engine is to be told."""
        for request_id, flight in self._flights.items():
            yield flight.submit
            yield from (Abort(request_id, seq) for seq in flight.aborts)

    def end_all(self, finish: Finish, error: str = "") -> None:
        """End every request."""
        for flight in list(self._flights.values()):
            self._end(flight, finish, error)

    def _end(self, flight: Flight, finish: Finish, error: str = "") -> None:
        self._live -= flight.stream.open
        del self._flights[flight.submit.request_id]
        flight.stream.end(finish, error)
