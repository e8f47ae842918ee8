"""What other processes spend that write the same ledger meanwhile: one that hands over to this one, or that this one hands over to."""

from __future__ import annotations

import json
import sqlite3

from quintet.ledger.rows import LIFE_BITS, State

Spent = tuple[str, float, int]
"""A key, a Unix time, and tokens."""

_NEWEST = "SELECT coalesce(max(seq), ?) FROM sqlite_sequence WHERE name = 'lives'"  # of all that have begun; they are numbered in order
_LAST = "SELECT coalesce(max(number), ?) FROM requests WHERE number > ? AND number < ?"
_OPEN = "SELECT number, prompt + completion FROM requests WHERE number > ? AND number < ? AND state = ?"
_ROWS = "SELECT number, key, arrived + coalesce(total, 0), prompt + completion, state FROM requests"
_LATER = f"{_ROWS} WHERE number > ? AND number < ? ORDER BY number"
_NAMED = f"{_ROWS} WHERE number IN (SELECT value FROM json_each(?))"  # noqa: S608  # words of ours


class Beside:
    """Reads of each row of theirs what it has more than at the last look, and no row again that has ended.

    Args:
        life: of this process.
    """

    def __init__(self, life: int) -> None:
        self._life = self._newest = life  # the newest at the last look
        self._last: dict[int, int] = {}  # life -> its last row that was read; none comes before it any more
        self._open: dict[int, int] = {}  # row that may still change -> its tokens at the last look

    def __bool__(self) -> bool:
        """Others write, or did at the last look."""
        return bool(self._last)

    def begin(self, connection: sqlite3.Connection) -> None:
        """What they have spent so far is known; a snapshot in which that was read.

        Raises:
            sqlite3.Error: they cannot be read.
        """
        self._last, self._open = {}, {}
        self._newest = self._begun(connection)
        for life in self._others(connection):
            before, end = _bounds(life)
            (self._last[life],) = connection.execute(_LAST, (before, before, end)).fetchone()
            self._open.update(connection.execute(_OPEN, (before, end, State.OPEN)))

    def look(self, connection: sqlite3.Connection) -> list[Spent]:
        """What they have spent since the last look.

        Raises:
            sqlite3.Error: they cannot be read, and will be the next time.
        """
        newest = self._begun(connection)  # asked first: of these one that is not alive by then has come and gone
        alive = self._others(connection)  # asked before the rows: of one that is not there any more the rows do not change
        rows = connection.execute(_NAMED, (json.dumps([*self._open]),)).fetchall()
        last: dict[int, int] = {}
        for life in alive | self._last.keys() | {*range(self._newest + 1, newest + 1)}:
            before, end = _bounds(life)
            later = connection.execute(_LATER, (self._last.get(life, before), end)).fetchall()
            rows += later
            if life in alive:
                last[life] = later[-1][0] if later else self._last.get(life, before)
        news = [(key, when, more) for number, key, when, tokens, _ in rows if (more := tokens - self._open.get(number, 0))]
        self._open = {number: tokens for number, _, _, tokens, state in rows if state == State.OPEN and number >> LIFE_BITS in last}
        self._last, self._newest = last, newest
        return news

    def _begun(self, connection: sqlite3.Connection) -> int:
        return int(connection.execute(_NEWEST, (self._life,)).fetchone()[0])

    def _others(self, connection: sqlite3.Connection) -> set[int]:
        return {life for (life,) in connection.execute("SELECT life FROM lives WHERE life <> ?", (self._life,))}


def _bounds(life: int) -> tuple[int, int]:
    """The numbers before a life's first row, and behind its last."""
    return (life << LIFE_BITS) - 1, (life + 1) << LIFE_BITS
