"""The thread that writes. What comes while it waits for the disk is written together: one synchronisation for all who wait for one.

A row that could not be written stays in memory, and is tried again until it is; a newer state of it takes its place.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator

from quintet.errors import counted
from quintet.ledger.rows import Row, State
from quintet.ledger.spending import DAY, Spending, Spent
from quintet.ledger.stats import Stats
from quintet.ledger.store import LostFileError, Store

_log = logging.getLogger(__name__)

RETRY_S = 0.5
"""Seconds until a disk that was full or broken is tried again."""

TIDY_S = 60.0
"""Seconds between two looks for rows that are too old, and for processes that have died."""

OTHERS_S = 5.0
"""The same while another process writes: what it spends is known here so much later."""

Rows = dict[int, Row | None]
"""By their numbers, as they stand; ``None`` = it must not be there."""


class Writer:
    """Writes rows in a thread of its own, soon after ``put``, or at ``wake``.

    Args:
        store: nobody else's from now on.
        keep: seconds for which rows are kept; 0 = for ever.
        now: Unix time; ``clock``: seconds, monotonic.
        on_tried: is told what became of rows that were put: the error, if they are still only in memory. Called in the thread.
    """

    def __init__(
        self,
        store: Store,
        keep: float,
        now: Callable[[], float],
        clock: Callable[[], float],
        on_tried: Callable[[Rows, Exception | None], None],
    ) -> None:
        self._store, self._keep, self._now, self._clock, self._on_tried = store, keep, now, clock, on_tried
        self.stats = Stats()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._pending: Rows = {}
        self._writing: Rows = {}  # taken from those that are pending, and not on the disk yet
        self._failing = ""  # why the last try to write failed; empty = it did not
        self._closing = False
        self._heard = Spending(now())  # summed up: it may be that nobody asks for long
        self._begin()

    @property
    def failing(self) -> bool:
        """The last try to write failed."""
        return bool(self._failing)

    @property
    def waiting(self) -> int:
        """Rows that are not on the disk as they stand."""
        return len(self._pending) + len(self._writing)

    def put(self, number: int, row: Row | None) -> None:
        """Take a row over, to be written at the next ``wake`` or sooner."""
        with self._lock:
            self._pending[number] = row

    def heard(self) -> list[Spent]:
        """What other processes have spent, as far as it was not asked for yet."""
        with self._lock:
            heard, self._heard = self._heard, Spending(self._now())
        return heard.all()

    def wake(self) -> None:
        """Write now what there is."""
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Write all that there is, or give up after so long; then let go of the file."""
        self._closing = True
        self._wake.set()
        self._thread.join(seconds)

    def turns(self) -> Iterator[float]:
        """The thread's body, a turn for each step of the iterator, as tests take them without a thread.

        Yields seconds until the next turn is due, if nobody wakes the thread sooner.
        """
        tidied = self._clock() - TIDY_S
        while True:
            due = tidied + self._pause - self._clock()
            yield RETRY_S if self._failing else max(0.0, due)
            closing = self._closing  # before the rows are taken: what is put before ``close`` is among them
            with self._lock:
                self._writing, self._pending = self._pending, {}
            self._write(self._writing)
            if closing:
                break
            if not self._failing and tidied + self._pause <= self._clock() and not self._tidy():
                tidied = self._clock()
        if lost := sum(row is not None for row in self._pending.values()):
            _log.error("ledger: %s lost that could not be written", counted(lost, "row"))
        self._store.close()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for seconds in self.turns():
            self._wake.wait(seconds)
            self._wake.clear()

    def _write(self, rows: Rows) -> None:
        begin = self._clock()
        try:
            if self._failing:
                self._store.mend()
            if self._failing and not any(rows.values()):
                self._store.probe()  # else a disk that is still full would seem to have room
            if rows:
                self._store.write(rows)
            self._store.require_there()  # after the rows: those that went to a file which nobody will find are written again
        except sqlite3.Error as error:
            self._fail(rows, error)
            return
        if self._failing:
            _log.warning("ledger: it can be written again, %s that waited too", counted(len(rows), "row"))
        elif not rows:
            return
        self._failing, self._writing = "", {}
        self.stats.wrote(self._clock() - begin, sum(row is not None and row.state is not State.OPEN for row in rows.values()))
        self._on_tried(rows, None)

    def _fail(self, rows: Rows, error: sqlite3.Error) -> None:
        with self._lock:
            self._pending, self._writing = {**rows, **self._pending}, {}
        why = _described(error)
        if why != self._failing:
            _log.error("ledger: cannot write to %s, %s; memory holds %s", self._store.file, why, counted(len(self._pending), "row"))
        self.stats.lost += isinstance(error, LostFileError)
        self._failing = why
        self._on_tried(rows, error)

    @property
    def _pause(self) -> float:
        return OTHERS_S if self._store.others.writing else TIDY_S

    def _tidy(self) -> bool:
        """A step of the clean-up; whether there is more to do."""
        try:
            if buried := self._store.bury():
                _log.warning("ledger: %s of processes that died, incomplete", counted(buried, "request"))
            self._hear(self._store.news())
            return self._keep > 0 and self._store.expire((self._now() - self._keep) // DAY * DAY)
        except sqlite3.Error as error:
            _log.warning("ledger: the clean-up waits, %s", _described(error))
            return False

    def _hear(self, news: list[Spent]) -> None:
        with self._lock:
            for spent in news:
                self._heard.add(*spent)


def _described(error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorname", "")
    return f"{error} ({code})" if code else str(error)
