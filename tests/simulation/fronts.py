"""The front's process, which may be killed at any point, and who takes its place: what outlives it is what the ledger has on the disk.

- Each request that the engine was given has exactly one row in the ledger, whatever died and however full the disk was; no other request
  has one. In the end all are closed: by their front, or, what was open when that was killed, as incomplete by the next. Lost is only what
  could not be written when the disk was full, and where requests are served all the same.
- Whoever got a whole answer has a completed row with the usage that it was told; an incomplete one, if its front was killed before that
  was on the disk.
- Whoever was waiting has a connection that breaks, and nobody else's answer when it asks the next front.

Killed is a process between two callbacks of its loop, which is where others see a difference. Its engine's process ends with it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.ledger.files import rows_in
from tests.simulation.clock import Life, SimulatedLoop, Violation
from tests.simulation.faults import Chance, Fault
from tests.simulation.invariants import Watch
from tests.simulation.served import Served

from quintet.ledger.rows import LIFE_BITS, Row, State

ENDED = {State.COMPLETED, State.CANCELLED, State.FAILED}


class Fronts:
    """The processes, one after the other.

    Args:
        make: a new one; called on the simulated loop.

    Attributes:
        current: ``None`` = it was killed, and the next has not begun.
        mortal: it may be killed.
    """

    def __init__(self, loop: SimulatedLoop, chance: Chance, watch: Watch, file: Path, make: Callable[[], Served]) -> None:
        self._loop, self._chance, self._watch, self._file, self._make = loop, chance, watch, file, make
        self._dead: list[Life] = []
        self._numbers: set[int] = set()  # of lives in the ledger, of those that are dead
        self._unsaved: set[str] = set()  # requests of which not all was on the disk
        self._lost: set[str] = set()  # and of these, those of which nothing was
        self.current: Served | None = None
        self.mortal = True
        watch.moment = self._moment
        self.begin()

    def begin(self) -> None:
        """The next one."""
        self.life = Life(self._loop)
        self._before = self._watch.given
        self.current = self.life.context.run(self._make)

    def check(self, whole: dict[str, tuple[int, int]]) -> None:
        """All have ended, and the ledger is closed.

        Args:
            whole: of requests that were answered to the end, the answer's id -> tokens of prompts and completions, as the client was told.

        Raises:
            Violation: a row is missing, too many or wrong, or something is still held of a limit.
        """
        assert self.current is not None
        rows = self._rows()
        given = self._watch.given - len(self._lost)
        _require(len(rows) == given or (len(rows) > given and bool(self._dead)), f"ledger: {len(rows)} rows for {given} requests")
        for row in rows:
            cut_off = row.state is State.INCOMPLETE and row.number >> LIFE_BITS in self._numbers
            _require(row.state in ENDED or cut_off, f"ledger: a row was {row.state.name} when all had ended")
        by_id = {row.id: row for row in rows}
        _require(len(by_id) == len(rows), "ledger: two rows of one request")
        for name, told in whole.items():
            if (one := name[-8:]) not in self._lost:
                found = by_id[one].state, by_id[one].prompt, by_id[one].completion
                late = found[0] is State.INCOMPLETE and one in self._unsaved
                _require(late or found == (State.COMPLETED, *told), f"ledger: {found}, and its client was told {told}")
        for limiter in self.current.limiters:
            limiter.check(rows)

    def bury(self) -> None:
        """The world ends."""
        for life in self._dead:
            life.bury()

    def _moment(self) -> None:
        if self.mortal and self._chance.happens(Fault.KILL_FRONT):
            self._loop.next(self._kill)

    def _kill(self) -> None:
        if self.current is None:  # it was killed a moment ago
            return
        front, self.current = self.current, None
        self._watch.front_died()
        self._loop.kill(self.life)
        self._dead.append(self.life)
        self._look(front)
        self._loop.call_later(self._chance.seconds(Fault.KILL_FRONT, 0.05, 5.0), self.begin)

    def _look(self, front: Served) -> None:
        """What the kernel does with the ledger of a process that is gone, and what is in it."""
        ledger, writer, store = front.ledger, front.ledger._writer, front.ledger._writer._store
        store._connection.close()
        if store._lock is not None:
            store._lock.drop()
        self._numbers.add(store.life)
        saved = {row.number for row in self._rows() if row.number >> LIFE_BITS == store.life}
        waiting = {**writer._writing, **writer._pending}
        unsaved = [row for row in waiting.values() if row is not None] + [entry.row for entry in ledger._entries.values()]
        self._unsaved |= {row.id for row in unsaved}
        spooled = {row.number: row.id for row in unsaved if row.number not in saved | ledger._waiting.keys()}
        _require(len(spooled) <= ledger.stats.spooled, "ledger: a request was served, and has no row")  # and not for want of room
        self._lost |= {*spooled.values()}
        begun = saved - ledger._waiting.keys() - {number for number, row in waiting.items() if row is None}
        given = self._watch.given - self._before
        _require(len(begun) + len(spooled) >= given, f"ledger: {len(begun)} rows and {len(spooled)} spooled of {given} requests")

    def _rows(self) -> list[Row]:
        return [row for row in rows_in(self._file).values() if row]


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)
