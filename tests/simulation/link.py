"""The engine's process and the socket to it, simulated: what stands in for ``Connection``, below the real ``ProcessLink``.

::

    ProcessLink --send--> frames --after a while--> inbox --> Worker.turns: one turn, then as long as it would have taken
                <-take--- frames <-after a while--- what the turn said, each at its own time

Inside runs the real worker. A turn is computed at once and its messages are stamped with the times at which a real one would have sent
them; what comes meanwhile waits in the inbox until the next turn. What is promised of a connection holds here too: frames come in order,
all that a process said before it died is heard before its death, and nothing after it was given up.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from random import Random
from typing import Any

from tests.simulation.clock import SimulatedLoop
from tests.simulation.faults import Chance, Fault
from tests.simulation.invariants import Watch
from tests.simulation.model import CRASHES, RAISES, SimulatedDraft, SimulatedModel
from tests.simulation.scheduling import WatchedWorker

from quintet.backends.native.core.loader import Loaded
from quintet.backends.native.core.types import Batch
from quintet.backends.native.wire import codec
from quintet.backends.native.wire.messages import Died, FromWorker, Load, Message, Vocabulary
from quintet.backends.native.worker.child import TokenTable

BACKLOG = 1 << 14
"""Bytes that a process may leave unread: as little as tests ``MAX_BACKLOG`` in small."""

PATIENCE_S = 2.0
"""What lasts no longer is not taken for a hang."""


@dataclass(slots=True)
class Machine:
    """What processes run on.

    Args:
        links: how long messages are on their way.
        step_s, token_s: seconds that a step takes, and each of its tokens.
        fragile: even the first start may go wrong, after which there is never an engine.
        drafted: there is a draft model.
        window: see ``SimulatedModel``.
    """

    loop: SimulatedLoop
    chance: Chance
    watch: Watch
    links: Random
    step_s: float
    token_s: float
    fragile: bool
    drafted: bool
    window: int

    @property
    def may_fail(self) -> bool:
        """An engine that never was ready is not started again: nothing would be left to see."""
        return self.fragile or self.watch.was_ready

    def lasts(self, fault: Fault, least: float, most: float) -> float:
        """Seconds; nobody can be quicker meanwhile, and who thinks that it hangs may kill it."""
        seconds = self.chance.seconds(fault, least, most)
        self.watch.excuse(seconds)
        if seconds > PATIENCE_S:
            self.watch.died()
        return seconds

    def delay(self) -> float:
        """Seconds that a message is on its way."""
        if self.chance.happens(Fault.LATE):
            return self.lasts(Fault.LATE, 0.05, 8.0)
        return 0.00002 + 0.0005 * self.links.random() ** 4


class _KilledError(BaseException):
    """The process is gone, in the middle of what it does."""


class _HungError(BaseException):
    """It never gets any further."""


class Pipe:
    """Bytes in one direction, in order.

    Args:
        take: gets them; ``None``: there is nothing more, and never will be.
    """

    def __init__(self, machine: Machine, take: Callable[[bytes | None], None]) -> None:
        self._machine, self._take = machine, take
        self._queue: deque[tuple[float, float, bytes | None]] = deque()  # sent, arrives, what
        self._last = 0.0

    def put(self, data: bytes | None, at: float) -> None:
        """Bytes sent at a time that may be yet to come."""
        chance = self._machine.chance
        if data and len(data) > 8 and chance.happens(Fault.CUT):
            self._put(data[: len(data) // 3], at)
            data = data[len(data) // 3 :]
        self._put(data, at)

    def cut(self, at: float) -> None:
        """What would have been sent later never is."""
        self._queue = deque(entry for entry in self._queue if entry[0] <= at)

    def close(self) -> None:
        """Nothing arrives any more."""
        self._queue.clear()

    def _put(self, data: bytes | None, at: float) -> None:
        self._last = max(self._last, at + self._machine.delay())
        self._queue.append((at, self._last, data))
        self._machine.loop.call_at(self._last, self._arrive)

    def _arrive(self) -> None:
        due = self._machine.loop.due
        while self._queue and self._queue[0][1] <= due:
            self._take(self._queue.popleft()[2])


class Inbox(SimpleQueue[Any]):
    """A worker that finds it empty has nothing to do: there is no thread to be held up."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return self.get_nowait()


class Process:
    """One process of the engine, from its start to its end.

    Args:
        out: its end of the socket.
    """

    pid = 0

    def __init__(self, machine: Machine, out: Pipe) -> None:
        self._machine, self._out, self._loop = machine, out, machine.loop
        self._splitter = codec.Splitter()
        self._inbox = Inbox()
        self._load: Load | None = None
        self._table: TokenTable | None = None
        self._turns: Iterator[None] | None = None
        self.worker: WatchedWorker | None = None
        self._spent = 0.0  # seconds of the turn that is being computed
        self._free = 0.0  # when it ends
        self._due = False  # the next one will be
        self.reads = True  # not stopped
        self._hung = False
        self.code: int | None = None

    def hear(self, data: bytes | None) -> None:
        """What arrives at its end of the socket."""
        if self.code is not None:
            return
        assert data is not None, "the front does not close its end first"
        for frame in self._splitter.feed(data):
            message = codec.decode_to_worker(frame)
            match message:
                case Load():
                    self._load = message
                case Vocabulary():
                    self._table = TokenTable(message)
                    self._begin()
                case _:
                    self._inbox.put(message)
        if self._turns is not None and self._machine.chance.happens(Fault.HANG_IDLE):
            self._machine.watch.hangs("stopped")
            self._hung, self.reads = True, False
        self._wake()

    def kill(self, code: int, at: float | None = None) -> None:
        """It is gone, now or at a time to come; what it said until then is still on its way."""
        if self.code is None:
            at = self._loop.time() if at is None else at
            self.code = code
            self._out.cut(at)
            self._out.put(None, at)

    # ---- what it computes

    def _clock(self) -> float:
        return self._loop.time() + self._spent

    def _begin(self) -> None:
        assert self._load is not None, "it comes first"
        self.worker = WatchedWorker(
            self._machine.watch, self._weights, self._load.config, self._clock, self._inbox, self._say, supervised=True
        )
        self._turns = self.worker.turns()
        self._turn()

    def _wake(self) -> None:
        """The next turn is due when this one is over."""
        if self._turns is not None and not self._due and not self._hung and self.code is None:
            self._due = True
            self._loop.call_at(max(self._free, self._loop.time()), self._next)

    def _next(self) -> None:
        self._due = False
        if self.code is None and not self._hung:
            if self._machine.chance.happens(Fault.KILL):
                self._machine.watch.trace("killed by somebody")
                self._machine.watch.died()
                self.kill(-9)
            else:
                self._turn()

    def _turn(self) -> None:
        assert self._turns is not None
        try:
            next(self._turns)
        except StopIteration:
            self.kill(0, self._clock())
        except _KilledError:
            self.kill(-11, self._clock())
        except _HungError:
            self._machine.watch.hangs("hangs")
            self._hung = True
        self._free, self._spent = self._clock(), 0.0
        if self.worker is not None and (self.worker.live or not self._inbox.empty()):
            self._wake()

    def _say(self, message: FromWorker) -> None:
        frame = bytes(codec.encode(message))
        if self._machine.may_fail and self._machine.chance.happens(Fault.NONSENSE):
            self._machine.watch.trace("sends nonsense")
            self._machine.watch.died()
            frame = b"\x05\x00\x00\x00nonse"
        self._out.put(frame, self._clock())

    def _weights(self, progress: Callable[[float], None]) -> Loaded[TokenTable]:
        chance = self._machine.chance
        for share in (0.25, 0.5, 0.75, 1.0):
            self._spent += self._machine.lasts(Fault.SLOW_LOAD, 0.1, 20.0) if chance.happens(Fault.SLOW_LOAD) else 0.05
            if self._machine.may_fail:
                self._stumble(Fault.CRASH_LOAD, Fault.HANG_LOAD)
            progress(share)
        assert self._table is not None
        draft = SimulatedDraft(self._compute_draft) if self._machine.drafted else None
        self._model = SimulatedModel(self._compute, self._machine.window)
        return Loaded(self._model, self._table, name="simulated", fingerprint="fp_simulated", draft=draft)

    def _compute(self, batch: Batch) -> None:
        """Time passes with each step, and it may go wrong."""
        machine, chance = self._machine, self._machine.chance
        seconds = machine.step_s + machine.token_s * len(batch.tokens)
        self._spent += seconds
        if chance.happens(Fault.SLOW_STEP):
            self._spent += machine.lasts(Fault.SLOW_STEP, 0.1, 30.0)
        if not machine.may_fail:
            return
        self._stumble(Fault.CRASH_STEP, Fault.HANG_STEP)
        if not self._model.broken and chance.happens(Fault.BREAK_MEMORY):
            machine.watch.breaks_memory()
            self._model.broken = True
        if (batch.tokens == CRASHES).any():
            machine.watch.poison()
            raise _KilledError
        poisoned = bool((batch.tokens == RAISES).any())
        if poisoned or chance.happens(Fault.FAIL_STEP):
            machine.watch.step_raised(not poisoned)
            machine.watch.excuse(2 * seconds)  # it is run again, in two parts
            raise RuntimeError("simulated")

    def _compute_draft(self, batch: Batch) -> None:
        """A tenth of the time, and what goes wrong costs nobody an answer but for a crash."""
        machine = self._machine
        self._spent += (machine.step_s + machine.token_s * len(batch.tokens)) / 10
        if machine.may_fail:
            self._stumble(Fault.CRASH_STEP, Fault.HANG_STEP)
            if machine.chance.happens(Fault.FAIL_DRAFT):
                raise RuntimeError("simulated")

    def _stumble(self, crash: Fault, hang: Fault) -> None:
        if self._machine.chance.happens(crash):
            self._machine.watch.trace("crashes")
            self._machine.watch.died()
            raise _KilledError
        if self._machine.chance.happens(hang):
            raise _HungError


class SimulatedConnection:
    """See ``Connection``, whose place it takes.

    Raises:
        OSError: as there.
    """

    def __init__(
        self, machine: Machine, module: Sequence[str], take: Callable[[FromWorker], None], lost: Callable[[Died | None], None]
    ) -> None:
        if machine.may_fail and machine.chance.happens(Fault.NO_PROCESS):
            machine.watch.died()
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        self._machine, self._take, self._lost = machine, take, lost
        self._splitter = codec.Splitter()
        self._in = Pipe(machine, self._received)
        self._out = Pipe(machine, self._deliver)
        self._unread = 0
        self._open = True
        self.process = Process(machine, self._in)

    @property
    def ended(self) -> bool:
        return self.process.code is not None

    def send(self, message: Message) -> None:
        frame = bytes(codec.encode(message))
        self._unread += len(frame)
        if self._unread > BACKLOG and not self.process.reads:
            self._machine.loop.call_soon(self._fail, Died("the engine reads nothing."))
        self._out.put(frame, self._machine.loop.time())

    def end(self, *, gone: bool) -> str:
        self._open = False
        code = self.process.code
        self.process.kill(-9)
        self._in.close()
        self._out.close()
        return "" if code is None else f" with code {code}"

    async def wait(self) -> None:
        assert self.ended, "``end`` comes first"

    def _deliver(self, data: bytes | None) -> None:
        if data is not None and self.process.reads:
            self._unread -= len(data)
        if self.process.reads:
            self.process.hear(data)

    def _received(self, data: bytes | None) -> None:
        if data is None:
            self._fail(None)
            return
        machine = self._machine
        if machine.chance.happens(Fault.STAND_STILL):
            machine.loop.stand_still(machine.lasts(Fault.STAND_STILL, 0.1, 60.0))
        try:
            for frame in self._splitter.feed(data):
                self._take(codec.decode_from_worker(frame))
                if not self._open:
                    return
        except codec.BadFrameError:
            self._fail(Died("the engine sent nonsense."))

    def _fail(self, why: Died | None) -> None:
        if self._open:
            self._lost(why)
