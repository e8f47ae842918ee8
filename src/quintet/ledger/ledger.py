"""The ledger as the event loop sees it: a row is opened before work begins, its counts are noted meanwhile, and it is closed."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

from quintet.config import LedgerConfig
from quintet.errors import Overloaded
from quintet.events import Usage
from quintet.ledger.rows import Row, State
from quintet.ledger.schema import LedgerError
from quintet.ledger.spending import DAY, SLOT, Spending
from quintet.ledger.stats import Stats
from quintet.ledger.store import LostFileError, Store
from quintet.ledger.writer import Rows, Writer

NOTE_S = 1.0
"""Seconds between two notes of how far running requests are: what is known of one whose process is killed."""

CLOSE_S = 0.05
"""Seconds that a closed row may wait for others to be written with. Nobody waits for it."""

PATIENCE_S = 5.0
"""Seconds after which a disk that does not answer counts as one that is full."""

MOST_SPOOLED = 10_000
"""Rows that may wait in memory for a disk that is full; half a kilobyte each."""

END_S = 5.0
"""Seconds that the last rows may take to be written."""

_RETRY_AFTER_S = 5.0
_UNWRITABLE = "The server cannot keep account of requests now; try again later."


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """A request that is admitted; see ``Row``.

    Args:
        arrived: seconds, on the ledger's clock.
    """

    id: str
    key: str
    model: str
    dialect: str
    n: int
    arrived: float


class Entry:
    """A request's row, until it is closed or withdrawn."""

    def __init__(self, ledger: Ledger, row: Row, arrived: float, usage: Callable[[], Usage]) -> None:
        self._ledger, self._arrived, self._usage = ledger, arrived, usage
        self.row = row

    def close(self, state: State, finish: str, status: int, first: float | None) -> None:
        """The request has ended; its usage is what it is now.

        Args:
            first: seconds from its arrival to its first text.
        """
        self.note()
        total = self._ledger.clock() - self._arrived
        self.row = self.row._replace(state=state, finish=finish, status=status, first=first, total=total)
        self._ledger.closed(self)

    async def withdraw(self) -> None:
        """The request is refused after all: there is no row when this returns, unless the disk is full."""
        await self._ledger.withdrawn(self)

    def note(self) -> bool:
        """Take the counts as they are; whether they have changed."""
        usage = self._usage()
        before = self.row
        self.row = before._replace(
            prompt=usage.prompt_tokens, completion=usage.completion_tokens, cached=usage.cached_tokens, reasoning=usage.reasoning_tokens
        )
        return self.row != before


class Ledger:
    """Open for one event loop; made before it, closed after it.

    Args:
        now: Unix time in seconds, for when requests came; it may jump.
        clock: seconds, monotonic, for how long they took.

    Raises:
        LedgerError: the file cannot be opened, or not be written.
    """

    def __init__(self, config: LedgerConfig, now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic) -> None:
        store = Store(config.file)
        try:
            self._numbers = itertools.count(store.begin(now()))
            self._spending = Spending(now())
            for spent in store.spent(self._spending.fine, SLOT, DAY):
                self._spending.add(spent.key, spent.time, spent.tokens)
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"{config.file}: {error}.") from None
        self.clock = clock
        self._now = now
        self._serve = config.serve_when_full
        self._entries: dict[int, Entry] = {}  # not closed
        self._waiting: dict[int, tuple[asyncio.Future[bool], float]] = {}  # for the disk: row -> whether it was written, and since when
        self._stuck = False  # the disk does not answer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticking = self._closing_soon = False
        self._writer = Writer(store, config.keep, now, clock, self._tried)

    @property
    def stats(self) -> Stats:
        """What it has done."""
        return self._writer.stats

    @property
    def spooled(self) -> int:
        """Rows that are only in memory because the disk does not take them."""
        return self._writer.waiting if self._unwritable else 0

    def spent(self, key: str) -> list[tuple[int, int]]:
        """Tokens, of prompts and completions, of a key's ended requests; see ``Spending.of``."""
        return self._spending.of(key)

    def elsewhere(self) -> list[tuple[str, int]]:
        """Keys, and tokens that they have spent in other processes since this was last asked; from here on ``spent`` has them."""
        heard = self._writer.heard()
        for spent in heard:
            self._spending.add(spent.key, spent.time, spent.tokens)
        return [(spent.key, spent.tokens) for spent in heard]

    async def open(self, about: About, usage: Callable[[], Usage]) -> Entry:
        """The row of a request, which is on the disk when this returns.

        Args:
            usage: its tokens so far, at any time.

        Raises:
            Overloaded: it cannot be written, and must not, or can no longer, be kept in memory.
        """
        self._loop = asyncio.get_running_loop()
        arrived = self._now() - (self.clock() - about.arrived)
        row = Row(next(self._numbers), about.id, about.key, about.model, about.dialect, about.n, arrived)
        entry = Entry(self, row, about.arrived, usage)
        if self._unwritable:
            self._spool()
            self._writer.put(row.number, row)
        else:
            try:
                if not await self._written(row.number, row):
                    self._spool()
            except BaseException:
                self._writer.put(row.number, None)
                raise
        self._entries[row.number] = entry
        self._tick_later()
        return entry

    def closed(self, entry: Entry) -> None:
        """What ``Entry.close`` has to do here."""
        row = entry.row
        del self._entries[row.number]
        self._spending.add(row.key, row.arrived + (row.total or 0.0), row.prompt + row.completion)
        self._writer.put(row.number, row)
        if self._loop is not None and not self._closing_soon:
            self._closing_soon = True
            self._loop.call_later(CLOSE_S, self._write_closed)

    async def withdrawn(self, entry: Entry) -> None:
        """What ``Entry.withdraw`` has to do here."""
        del self._entries[entry.row.number]
        await self._written(entry.row.number, None)

    def close(self) -> None:
        """Write what is left, and let go of the file."""
        self._loop = None
        self._writer.close(END_S)

    @property
    def _unwritable(self) -> bool:
        return self._stuck or self._writer.failing

    def _spool(self) -> None:
        """Let a request go on whose row cannot be written, if it may.

        Raises:
            Overloaded: it may not.
        """
        if not self._serve or self._writer.waiting > MOST_SPOOLED:
            self.stats.refused += 1
            raise Overloaded(_UNWRITABLE, _RETRY_AFTER_S)
        self.stats.spooled += 1

    async def _written(self, number: int, row: Row | None) -> bool:
        """Write a row, together with what else there is; whether it is on the disk."""
        assert self._loop is not None
        future: asyncio.Future[bool] = self._loop.create_future()
        self._waiting[number] = future, self.clock()
        self._writer.put(number, row)
        self._writer.wake()
        self._tick_later()
        try:
            return await future
        finally:
            del self._waiting[number]

    def _tried(self, rows: Rows, error: Exception | None) -> None:
        """The writer's thread has tried to write rows. Called there."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._on_tried, rows, error)

    def _on_tried(self, rows: Rows, error: Exception | None) -> None:
        self._stuck = False
        if isinstance(error, LostFileError):  # in the next one, nothing is known of what runs
            for number, entry in self._entries.items():
                self._writer.put(number, entry.row)
        for number in self._waiting.keys() & rows.keys():
            _settle(self._waiting[number][0], written=error is None)

    def _write_closed(self) -> None:
        self._closing_soon = False
        self._writer.wake()

    def _tick_later(self) -> None:
        if self._loop is not None and not self._ticking:
            self._ticking = True
            self._loop.call_later(NOTE_S, self._tick)

    def _tick(self) -> None:
        """Note the counts of what runs, and give up on a disk that does not answer."""
        self._ticking = False
        for number, entry in self._entries.items():
            if entry.note():
                self._writer.put(number, entry.row)
        if self._writer.waiting:
            self._writer.wake()
        late = [future for future, since in self._waiting.values() if self.clock() - since > PATIENCE_S]
        self._stuck = self._stuck or bool(late)
        for future in late:
            _settle(future, written=False)
        if self._entries or self._waiting:
            self._tick_later()


def _settle(future: asyncio.Future[bool], *, written: bool) -> None:
    if not future.done():  # whoever waited may be gone
        future.set_result(written)
