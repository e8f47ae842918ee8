"""What keys spend in other processes that write the same ledger: one that hands over to this one, or that this one hands over to."""

from __future__ import annotations

import json
import sqlite3
from typing import NamedTuple

from quintet.ledger.rows import LIFE_BITS, State
from quintet.ledger.spending import Spent

_NEWEST = "SELECT coalesce(max(seq), ?) FROM sqlite_sequence WHERE name = 'lives'"  # of all that have begun; they are numbered in order
_LAST = "SELECT coalesce(max(number), ?) FROM requests WHERE number > ? AND number < ?"
_OPEN = "SELECT number, prompt + completion FROM requests WHERE number > ? AND number < ? AND state = ?"
_ROWS = "SELECT number, key, arrived + coalesce(total, 0), prompt + completion, state FROM requests"
_LATER = f"{_ROWS} WHERE number > ? AND number < ? ORDER BY number"
_NAMED = f"{_ROWS} WHERE number IN (SELECT value FROM json_each(?))"  # noqa: S608  # words of ours


class _Seen(NamedTuple):
    """A row as ``_ROWS`` selects it."""

    number: int
    key: str
    time: float
    tokens: int
    state: str


class OthersSpending:
    """Reads of each row of theirs what it has more than at the last look, and no row again that has ended.

    Args:
        life: of this process.
    """

    def __init__(self, life: int) -> None:
        self._life = life
        self._newest = life  # of all lives, at the last look
        self._last: dict[int, int] = {}  # life -> its last row that was read; none comes before it any more
        self._open: dict[int, int] = {}  # row that may still change -> its tokens at the last look

    @property
    def writing(self) -> bool:
        """Others did, at the last look."""
        return bool(self._last)

    def begin(self, connection: sqlite3.Connection) -> None:
        """From here on ``look`` tells what they spend.

        Args:
            connection: in the transaction in which was read what they have spent so far.

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
        rows = [_Seen(*row) for row in connection.execute(_NAMED, (json.dumps([*self._open]),))]
        last: dict[int, int] = {}
        for life in alive | self._last.keys() | {*range(self._newest + 1, newest + 1)}:
            before, end = _bounds(life)
            seen = self._last.get(life, before)
            later = [_Seen(*row) for row in connection.execute(_LATER, (seen, end))]
            rows += later
            if life in alive:
                last[life] = later[-1].number if later else seen
        news = []
        for row in rows:
            more = row.tokens - self._open.get(row.number, 0)
            if more:
                news.append(Spent(row.key, row.time, more))
        self._open = {row.number: row.tokens for row in rows if row.state == State.OPEN and row.number >> LIFE_BITS in last}
        self._last, self._newest = last, newest
        return news

    def _begun(self, connection: sqlite3.Connection) -> int:
        return int(connection.execute(_NEWEST, (self._life,)).fetchone()[0])

    def _others(self, connection: sqlite3.Connection) -> set[int]:
        return {life for (life,) in connection.execute("SELECT life FROM lives WHERE life <> ?", (self._life,))}


def _bounds(life: int) -> tuple[int, int]:
    """The numbers before a life's first row, and behind its last."""
    return (life << LIFE_BITS) - 1, (life + 1) << LIFE_BITS
