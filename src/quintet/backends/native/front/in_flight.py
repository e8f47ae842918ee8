"""Requests on their way through the engine, and what becomes of them when it dies. Plain code over values."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakSet

from quintet.backends.native.front.repeat import Told
from quintet.backends.native.front.restarts import BLAME, LESS_BLAME, Suspects
from quintet.backends.native.front.soundness import Soundness
from quintet.backends.native.wire.messages import Abort, Pixels, Submit
from quintet.events import Finish, TokenEvent

if TYPE_CHECKING:
    from quintet.backends.native.front.stream import Stream

INTERRUPTED = "The engine failed while it was working on this request."
"""Reason of a request of which a part had been shown already, or that had been computed at a failure before."""

REFUSED = "The engine failed twice while it was working on this request; it is not tried again."
"""Reason of a request that is taken for the cause."""

UNREAD = "The answer was not read as fast as it was made, and too much of it waited; ask for less at once, or read faster."

MOST_UNREAD = 3_000_000
"""Log-probabilities that wait for readers, in all streams together: some 200 bytes each. The largest answer has 2,000,000 by default."""

LARGE_UNREAD = 50_000
"""Of one stream, before the others are looked at."""

UNSENDABLE = "The engine cannot take this request."


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """A request that has not ended.

    Args:
        aborts: what was called off: sequences, or all (``None``).
        sent: the engine that runs now was told of it.
        resent: engines before it were too.
        computed: that engine has begun with it.
        pixels: of its images, by their digests.
        told: what it was told, where nobody is shown any of that before the last; else ``None``.
        deaths: of engines that were computing it.
    """

    submit: Submit
    stream: Stream
    aborts: list[int | None] = field(default_factory=list)
    sent: bool = False
    resent: bool = False
    computed: bool = False
    pixels: Mapping[bytes, bytes] = field(default_factory=dict)
    told: Told | None = None
    deaths: int = 0

    @property
    def repeatable(self) -> bool:
        """It can be run again without anybody noticing; what may be the cause of two deaths is not worth a third."""
        return not self.stream.delivered or (self.told is not None and self.deaths < 2)


class InFlight:
    """All requests that have not ended.

    A death ends those of which a part was shown, and those of which anything was delivered that an engine died over before. All that were
    being computed are suspects. The next engine runs them first, one at a time, each until its first token, and everything else after them:
    so a second death shows which of them it was. One that comes later waits for its turn among the suspects, beside what is no suspect.

    Args:
        send: tells the engine.
        clock: seconds, monotonic.
        digest: of what a request asks for.
        suspects: known of other engines of the model too; ``None`` = of this one alone.
    """

    def __init__(
        self,
        send: Callable[[Submit | Pixels | Abort], None],
        clock: Callable[[], float],
        digest: Callable[[Submit], bytes],
        suspects: Suspects | None = None,
    ) -> None:
        self._tell, self._clock, self._digest = send, clock, digest
        self._in_flight: dict[int, InFlightRequest] = {}
        self._streams: WeakSet[Stream] = WeakSet()  # also those of requests that have ended, and of which something waits to be read
        self._suspects = Suspects() if suspects is None else suspects
        self._held_suspects: deque[InFlightRequest] = deque()  # that wait for their turn
        self._trial: InFlightRequest | None = None
        self._suspects_first = False  # the suspects of the last death have their turns, and everything else waits
        self._turns_left = 0  # of those held, how many of these are left
        self._ended_reruns: set[int] = set()  # requests that have ended, and were run again by this engine, which may not know that yet
        self._up = False
        self._live: Counter[str] = Counter()  # sequences that have not ended, by tenant
        self.soundness = Soundness()
        self.ended = 0
        """Sequences that the engine has ended, in all."""
        self.refused = 0
        """Requests that were taken for the cause of deaths and not run, in all."""

    def __len__(self) -> int:
        return len(self._in_flight)

    @property
    def live(self) -> int:
        """Sequences that have not ended."""
        return self._live.total()

    def live_of(self, tenant: str) -> int:
        """Those of a tenant."""
        return self._live[tenant]

    def take(self, request: InFlightRequest) -> None:
        """Take a request up, be it new or what another engine has let go of; one that must not run ends at once."""
        self._in_flight[request.submit.request_id] = request
        self._streams.add(request.stream)
        self._live[request.submit.tenant] += request.stream.open
        self._admit(request)
        self._next()

    def abort(self, request_id: int, seq: int | None) -> None:
        """Call a request, or one of its sequences, off."""
        request = self._in_flight.get(request_id)
        if request is None:
            return
        request.aborts.append(seq)
        if request.sent:
            self._tell(Abort(request_id, seq))
        elif seq is None:
            self._end(request, Finish.ABORT)

    def want(self, request_id: int, digest: bytes) -> None:
        """The engine wants an image's pixels; those of a request that has ended it wants no more."""
        request = self._in_flight.get(request_id)
        if request is not None and digest in request.pixels:
            self._tell(Pixels(digest, request.pixels[digest]))

    def begin(self, requests: Sequence[int]) -> None:
        """The engine begins to compute these."""
        for request_id in requests:
            if request := self._in_flight.get(request_id):
                request.computed = True

    def push(self, request_id: int, batch: Sequence[TokenEvent]) -> None:
        """A request's next events."""
        if request_id in self._ended_reruns:
            return
        request = self._in_flight[request_id]
        ends = self._push(request, batch)
        if self.soundness.doubted or (ends and batch[-1].finish is Finish.ERROR):
            self.soundness.see(request.submit.prompts, batch)
        if ends:
            self.ended += ends
            self._count_ended(request, ends)
            if not request.stream.open:
                del self._in_flight[request_id]
                if request.resent:
                    self._ended_reruns.add(request_id)
                if self._suspects and batch[-1].finish in (Finish.EOS, Finish.LENGTH):
                    self._suspects.clear(self._digest(request.submit))
        if request is self._trial:
            self._trial = None
            self._next()
        if request.stream.waiting > LARGE_UNREAD:
            self._require_reading()

    def _require_reading(self) -> None:
        """Where too much waits for clients that read too slowly, or not at all, the one for which most waits is given up."""
        while sum(stream.waiting for stream in self._streams) > MOST_UNREAD:
            slowest = max(self._streams, key=lambda stream: stream.waiting)
            slowest.give_up(UNREAD)
            for request_id in [id_ for id_, request in self._in_flight.items() if request.stream is slowest]:
                self.abort(request_id, None)

    def _push(self, request: InFlightRequest, batch: Sequence[TokenEvent]) -> int:
        """Add to its stream what of the batch was not told before a death; returns how many sequences that ends."""
        if request.told is not None:
            batch = request.told.new(batch)
            if request.told.differs:
                self._tell(Abort(request.submit.request_id, None))
                batch = request.stream.rest(Finish.ERROR, INTERRUPTED)
        return request.stream.push(batch) if batch else 0

    def up(self) -> None:
        """An engine is ready: tell it what there is to do."""
        self._up = self._suspects_first = True
        for request in list(self._in_flight.values()):
            self._admit(request)
        self._turns_left = len(self._held_suspects)
        self._next()

    def down(self, *, unsound: bool = False) -> int:
        """The engine is gone: end what it took with it, and keep what can be run again without anybody noticing.

        Args:
            unsound: it was ended for that; else what it was computing may be the cause.

        Returns:
            Requests that broke off.
        """
        computed = [request for request in self._in_flight.values() if request.computed]
        # In this order, so that of equal requests the one with more blame counts.
        shares = {self._key(request): LESS_BLAME for request in computed if request.stream.delivered}
        shares |= {self._key(request): BLAME for request in computed if not request.stream.delivered}
        self.soundness.restarted(unsound=unsound)
        if not unsound:
            self._suspects.blame(shares, self._clock())
        self._up, self._suspects_first, self._trial, self._turns_left = False, False, None, 0
        self._held_suspects.clear()
        self._ended_reruns.clear()
        broken = 0
        for request in list(self._in_flight.values()):
            request.deaths += request.computed
            request.resent |= request.sent
            request.sent = request.computed = False
            if None in request.aborts:
                self._end(request, Finish.ABORT)
            elif not request.repeatable:
                self._end(request, Finish.ERROR, INTERRUPTED)
                broken += 1
            elif request.told is not None:
                request.told.begin_again()
        return broken

    def release(self) -> list[InFlightRequest]:
        """While no engine is up: let go of what waits and is no suspect, so that another engine can ``take`` it."""
        if self._up:
            return []
        now = self._clock()
        untouched = [request for request in self._in_flight.values() if not (request.stream.delivered or request.sent)]
        free = [request for request in untouched if not self._suspects.suspected(self._digest(request.submit), now)]
        for request in free:
            self._count_ended(request, request.stream.open)
            del self._in_flight[request.submit.request_id]
        return free

    def end_all(self, finish: Finish, error: str = "") -> None:
        """End every request."""
        for request in list(self._in_flight.values()):
            self._end(request, finish, error)

    def _admit(self, request: InFlightRequest) -> None:
        """Send it now, or later, or never."""
        now = self._clock()
        if self._suspects and self._suspects.suspected(digest := self._digest(request.submit), now):
            if self._suspects.blocked(digest, request.submit.tenant, now):
                self.refused += 1
                self._end(request, Finish.ERROR, REFUSED)
            elif self._up:
                self._held_suspects.append(request)
        elif self._up and not self._suspects_first:
            self._send(request)

    def _next(self) -> None:
        """Run the next suspect, if none runs; and once those of the last death have had their turns, everything else."""
        while self._up and self._trial is None:
            if self._suspects_first and not self._turns_left:
                self._suspects_first = False
                self._send_rest()
            elif self._held_suspects:
                self._turns_left = max(0, self._turns_left - 1)
                request = self._held_suspects.popleft()
                if request.stream.open:
                    self._send(request)
                    self._trial = request if request.sent else None
            else:
                return

    def _send_rest(self) -> None:
        for request in list(self._in_flight.values()):
            if not request.sent and request not in self._held_suspects:
                self._send(request)

    def _key(self, request: InFlightRequest) -> tuple[bytes, str]:
        """By what it is blamed: the digest of what it asks for, and its tenant."""
        return self._digest(request.submit), request.submit.tenant

    def _send(self, request: InFlightRequest) -> None:
        try:
            self._tell(request.submit)
        except (OverflowError, ValueError):  # what no frame can hold must not be left here without an end
            self._end(request, Finish.ERROR, UNSENDABLE)
            return
        request.sent = True
        ended = sorted(request.told.ended) if request.told else ()
        for seq in (*request.aborts, *ended):
            self._tell(Abort(request.submit.request_id, seq))

    def _end(self, request: InFlightRequest, finish: Finish, error: str = "") -> None:
        self._count_ended(request, request.stream.open)
        del self._in_flight[request.submit.request_id]
        request.stream.end(finish, error)

    def _count_ended(self, request: InFlightRequest, count: int) -> None:
        tenant = request.submit.tenant
        self._live[tenant] -= count
        if not self._live[tenant]:
            del self._live[tenant]
