"""A supervisor without an event loop, a thread or waiting: its link notes what it is told, and time passes when told."""

from __future__ import annotations

from collections.abc import Callable

from quintet.backends.base import Counts, Incidents, Pages, State
from quintet.backends.native.front.in_flight import InFlight
from quintet.backends.native.front.link import Link
from quintet.backends.native.front.stream import Stream
from quintet.backends.native.front.supervisor import Supervisor
from quintet.backends.native.wire.messages import (
    Died,
    EventRow,
    FromWorker,
    Ping,
    Ready,
    Stepped,
    Submit,
    TokenRow,
    ToWorker,
)
from quintet.backends.toy import ToyTokenizer
from quintet.events import TokenEvent
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Sampling

READY = Ready(model="toy", context=100, vocab=257, max_logprobs=5, max_sequences=8, fingerprint="fp")


class FakeLink(Link):
    """Notes what it is told, and says what the test says."""

    def __init__(self, *, restarts: bool) -> None:
        self.restarts = restarts
        self.tokenizer = ToyTokenizer()
        self.starts = self.kills = 0
        self.sent: list[ToWorker] = []
        self.closed = self.deaf = False
        self.say: Callable[[FromWorker], None] = lambda _: None

    def start(self, receive: Callable[[FromWorker], None]) -> None:
        self.starts += 1
        self.say = receive

    def send(self, message: ToWorker) -> None:
        if isinstance(message, Ping):
            if not self.deaf:
                self.say(Stepped(0, 0, Counts(), Pages(), {}))
        else:
            self.sent.append(message)

    def kill(self) -> None:
        self.kills += 1
        self.say(Died("the engine was killed."))

    async def close(self) -> None:
        self.closed = True


class FakeTimer:
    """Something that is called at a time."""

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call, self.cancelled = at, call, False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """A supervisor, its link, and time that passes when told."""

    def __init__(self, *, restarts: bool = True, watched: bool = False) -> None:
        self.now = 100.0
        self.timers: list[FakeTimer] = []
        self.link = FakeLink(restarts=restarts)
        clock = lambda: self.now  # noqa: E731
        work = InFlight(self.link.send, clock, lambda submit: bytes(submit.prompts[0]))
        self.memory = (1 << 40, 1 << 40)  # available, and all there is
        memory = lambda: self.memory  # noqa: E731
        self.made = Supervisor(self.link, work, clock, self._later, chance=lambda: 0.0, memory=memory, watched=watched)

    def _later(self, seconds: float, call: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(self.now + seconds, call))
        return self.timers[-1]

    def wait(self, seconds: float) -> None:
        """Time passes, and what is due happens when it is."""
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer.at <= end and not timer.cancelled]:
            first = min(due, key=lambda timer: timer.at)
            self.timers.remove(first)
            self.now = max(self.now, first.at)
            first.call()
        self.now = end

    def run(self, request_id: int, *, shown: bool = True) -> Stream:
        sequence = PreparedSequence((request_id,), 5, Sampling(0.0, 1.0, 0), None, echo=False)
        stream = Stream(1)
        self.made.run(Submit.of(request_id, (sequence,), self.now), stream, shown=shown)
        return stream

    def step(self, request_id: int, *rows: TokenRow | EventRow, steps: int = 1) -> None:
        self.link.say(Stepped(1, 0, Counts(steps, 8 * steps), Pages(4, 16, 1), {request_id: [*rows]}))

    def told(self) -> list[int]:
        """Numbers of the requests that the link was told of since the last time."""
        told = [message.request_id for message in self.link.sent if isinstance(message, Submit)]
        self.link.sent.clear()
        return told

    @property
    def state(self) -> State:
        return self.made.health(draining=False).state

    @property
    def incidents(self) -> Incidents:
        return self.made.health(draining=False).incidents

    def retry(self, ends: int = 0, *, draining: bool = False) -> float:
        return self.made.retry_after(ends, draining=draining)


def all_of(stream: Stream) -> list[TokenEvent]:
    return [event for batch in stream._batches for event in batch]


def ready(*, restarts: bool = True) -> World:
    world = World(restarts=restarts)
    world.link.say(READY)
    return world
