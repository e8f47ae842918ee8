"""Rows in SQLite. Everything here blocks, and is called by one thread at a time."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from quintet.ledger import lives
from quintet.ledger.others import OthersSpending
from quintet.ledger.rows import LIFE_BITS, Row, State
from quintet.ledger.schema import ARRIVED_ON, LedgerError, connect, patiently, upsert
from quintet.ledger.spending import Spent

MOST_AT_ONCE = 256
"""Rows of a statement, and of a step of the clean-up, which others wait for."""

_EXPIRE = f"""
    INSERT INTO totals (day, key, model, dialect, state, requests, prompt, completion, cached, reasoning)
    SELECT {ARRIVED_ON} AS day, key, model, dialect, state,
      count(*), sum(prompt), sum(completion), sum(cached), sum(reasoning)
    FROM requests WHERE number IN (SELECT number FROM old) GROUP BY day, key, model, dialect, state
    ON CONFLICT (day, key, model, dialect, state) DO UPDATE SET
      requests = requests + excluded.requests, prompt = prompt + excluded.prompt, completion = completion + excluded.completion,
      cached = cached + excluded.cached, reasoning = reasoning + excluded.reasoning"""  # noqa: S608  # the day is words of ours


class LostFileError(sqlite3.OperationalError):
    """What is at the ledger's path is not the file that was opened: it was deleted or replaced."""


class Store:
    """A ledger's file, open for writing.

    Raises:
        LedgerError: see ``schema.connect``.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._file_identity: tuple[int, int] | None = None  # of what was opened; ``None`` = it is lost
        self._open()
        self.life = 0
        self._began = 0.0  # when this life did; with its number it tells its own row from another server's
        self._wal_identity: tuple[int, int] | None = None  # of the write-ahead log
        self._lock: lives.Life | None = None
        self.others = OthersSpending(0)

    def begin(self, now: float) -> int:
        """Begin a life of this process; the first number of its rows. No two lives share one, whatever clocks say.

        Raises:
            sqlite3.Error, OSError: it cannot be written down.
        """
        with self._transaction():  # nobody else looks for the dead between the life and its lock
            cursor = self._connection.execute("INSERT INTO lives (seen) VALUES (?)", (now,))
            self.life, self._began = int(cursor.lastrowid or 0), now
            self._lock = lives.Life(self.file, self.life)
        self.others = OthersSpending(self.life)
        self._wal_identity = _identity(self._at("-wal"))
        return self.life << LIFE_BITS

    def write(self, rows: Mapping[int, Row | None]) -> None:
        """Write rows as they stand now, all or none; ``None`` = there is none of this number. On the disk when it returns.

        Up to ``MOST_AT_ONCE`` rows are one statement, and by that a transaction: each further statement would mean that this thread asks
        once more for the interpreter's lock while the event loop has it.

        Raises:
            sqlite3.Error: the disk is full or broken; nothing was written.
        """
        written = [row for row in rows.values() if row is not None]
        withdrawn = [(number,) for number, row in rows.items() if row is None]
        if not withdrawn and 0 < len(written) <= MOST_AT_ONCE:
            self._upsert(written)
            return
        with self._transaction():
            for first in range(0, len(written), MOST_AT_ONCE):
                self._upsert(written[first : first + MOST_AT_ONCE])
            self._connection.executemany("DELETE FROM requests WHERE number = ?", withdrawn)

    def probe(self) -> None:
        """Write something, to see whether that is possible.

        Raises:
            sqlite3.Error: it is not.
        """
        self._execute("UPDATE lives SET seen = seen WHERE life = ?", (self.life,))

    def require_there(self) -> None:
        """
        Raises:
            LostFileError: who looks for the ledger will not find what was written.
        """
        if not self._there:
            raise LostFileError(f"{self.file.name} was deleted or replaced while it was open")

    def mend(self) -> None:
        """If the file is lost, go on in the one that is there now, which is made if there is none, under the number of this life.

        It may be the lost one, or a copy: a volume that is mounted again, a backup. Then it has this life already.

        Raises:
            sqlite3.Error: that is not possible, or its rows may have the numbers of ours.
        """
        if self._there:
            return
        self._file_identity = None
        self._connection.close()
        try:
            if _identity(self._at("-wal")) == self._wal_identity:  # SQLite would take it for the next file's
                for suffix in ("-wal", "-shm"):
                    self._at(suffix).unlink(missing_ok=True)
            self._wal_identity = None
            if self._lock is not None:
                self._lock.drop()
                self._lock = None
            self._open()
            with self._transaction():
                mine = (self.life, self._began)
                self._connection.execute("DELETE FROM lives WHERE life = ? AND seen = ?", mine)
                self._connection.execute("INSERT INTO lives (life, seen) VALUES (?, ?)", mine)
                self._lock = lives.Life(self.file, self.life)
            self._wal_identity = _identity(self._at("-wal"))
        except (LedgerError, OSError) as error:
            self._file_identity = None
            raise sqlite3.OperationalError(str(error)) from None
        except sqlite3.Error:
            self._file_identity = None
            raise

    def bury(self) -> int:
        """Mark what ran in processes that have died as incomplete; the number of these rows.

        Raises:
            sqlite3.Error: it cannot be written.
        """
        with self._transaction():
            others = [life for (life,) in self._connection.execute("SELECT life FROM lives WHERE life <> ?", (self.life,))]
            dead = [life for life in others if lives.ended(self.file, life)]
            count = sum(self._end(life) for life in dead)
        for life in dead:
            lives.forget(self.file, life)
        return count

    def expire(self, before: float) -> bool:
        """Put some of the ended requests that arrived before a time together, by day (UTC); whether there may be more.

        Raises:
            sqlite3.Error: it cannot be written.
        """
        with self._transaction():
            self._connection.execute("DELETE FROM old")
            found = self._connection.execute(
                "INSERT INTO old SELECT number FROM requests WHERE arrived < ? AND state <> ? LIMIT ?", (before, State.OPEN, MOST_AT_ONCE)
            ).rowcount
            if found:
                self._connection.execute(_EXPIRE)
                self._connection.execute("DELETE FROM requests WHERE number IN (SELECT number FROM old)")
        return found == MOST_AT_ONCE

    def spent(self, fine: float, slot: float, day: float) -> list[Spent]:
        """Tokens of each key by when requests ended: a sum for each slot from ``fine`` on, and for each day before it.

        The time of a sum is in its slot or day. Of days that are in the totals nothing else is known: they stand in a day's last slot. From
        here on ``news`` has what others spend.

        Args:
            fine: the beginning of a day, as a Unix time.
            slot, day: seconds of one.
        """
        with self._transaction("DEFERRED"):  # one moment of the file; others write on
            found = self._execute(
                """SELECT key, CASE WHEN ended >= :fine THEN CAST(ended / :slot AS INTEGER) * :slot
                                    ELSE CAST(ended / :day AS INTEGER) * :day END AS time, sum(tokens)
                   FROM (SELECT key, arrived + coalesce(total, 0) AS ended, prompt + completion AS tokens FROM requests) GROUP BY key, time
                   UNION ALL
                   SELECT key, CAST(strftime('%s', day) AS REAL) + :day - 1, sum(prompt + completion) FROM totals GROUP BY key, day""",
                {"fine": fine, "slot": slot, "day": day},
            ).fetchall()
            self.others.begin(self._connection)
        return [Spent(*row) for row in found]

    def news(self) -> list[Spent]:
        """What other processes have spent since ``spent``, or this, was asked.

        Raises:
            sqlite3.Error: it cannot be read.
        """
        return patiently(lambda: self.others.look(self._connection))

    def close(self) -> None:
        """Let go of the file. Rows of this life that are still open will never be closed now."""
        with contextlib.suppress(sqlite3.Error), self._transaction():  # else the next life finds them
            self._end(self.life)
        if self._lock is not None:
            self._lock.end()
        self._connection.close()

    def _open(self) -> None:
        self._connection = connect(self.file)
        self._connection.execute("CREATE TEMP TABLE old (number INTEGER PRIMARY KEY)")
        self._file_identity = _identity(self.file)

    def _upsert(self, rows: Sequence[Row]) -> None:
        self._execute(upsert(len(rows)), [*chain.from_iterable(rows)])

    def _execute(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
        """A statement that may find the file locked."""
        return patiently(lambda: self._connection.execute(statement, values))

    def _at(self, suffix: str) -> Path:
        return self.file.with_name(self.file.name + suffix)

    @property
    def _there(self) -> bool:
        """What was opened is still at its path."""
        return self._file_identity is not None and _identity(self.file) == self._file_identity

    def _end(self, life: int) -> int:
        """Mark what a life has left open as incomplete, and forget the life; the number of these rows."""
        first = life << LIFE_BITS
        cursor = self._connection.execute(
            "UPDATE requests SET state = ? WHERE number >= ? AND number < ? AND state = ?",
            (State.INCOMPLETE, first, first + (1 << LIFE_BITS), State.OPEN),
        )
        self._connection.execute("DELETE FROM lives WHERE life = ?", (life,))
        return cursor.rowcount

    @contextlib.contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        self._execute(f"BEGIN {kind}")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite ends one by itself at some errors of the disk
                self._connection.execute("ROLLBACK")
            raise


def _identity(file: Path) -> tuple[int, int] | None:
    """Of what is at a path; ``None`` = nothing that can be looked at."""
    try:
        info = file.stat()
    except OSError:
        return None
    return info.st_dev, info.st_ino
