"""What other processes spend that write the same ledger meanwhile: one that hands over to this one, or that this one hands over to."""

from __future__ import annotations

import sqlite3

from quintet.ledger.rows import LIFE_BITS, State

Spent = tuple[str, float, int]
"""A key, a Unix time, and tokens."""

_FIRST = "SELECT coalesce(min(CASE WHEN state = ? THEN number END), max(number) + 1) FROM requests WHERE number >= ? AND number < ?"
_ROWS = """SELECT number, key, arrived + coalesce(total, 0), prompt + completion, state FROM requests
           WHERE number >= ? AND number < ? ORDER BY number"""


class Beside:
    """Reads of each row of theirs what it has more than at the last look, and no row again that has ended.

    Args:
        life: of this process.
    """

    def __init__(self, life: int) -> None:
        self._life = life
        self._first: dict[int, int] = {}  # life -> its first row that may still change, or come
        self._told: dict[int, int] = {}  # row -> its tokens at the last look, of these

    def __bool__(self) -> bool:
        """Others write, or did at the last look."""
        return bool(self._first)

    def begin(self, connection: sqlite3.Connection) -> None:
        """What they have spent so far is known; a snapshot in which that was read.

        Raises:
            sqlite3.Error: they cannot be read.
        """
        for life in self._others(connection):
            first, end = life << LIFE_BITS, (life + 1) << LIFE_BITS
            (found,) = connection.execute(_FIRST, (State.OPEN, first, end)).fetchone()
            self._first[life] = first if found is None else found
        self.look(connection)

    def look(self, connection: sqlite3.Connection) -> list[Spent]:
        """What they have spent since the last look.

        Raises:
            sqlite3.Error: they cannot be read, and will be the next time.
        """
        alive = self._others(connection)  # asked first: of one that is not there any more the rows do not change
        first: dict[int, int] = {}
        told: dict[int, int] = {}
        news: list[Spent] = []
        for life in alive | self._first.keys():
            begin = self._first.get(life, life << LIFE_BITS)
            rows = connection.execute(_ROWS, (begin, (life + 1) << LIFE_BITS)).fetchall()
            news += [(key, when, more) for number, key, when, tokens, _ in rows if (more := tokens - self._told.get(number, 0))]
            if life in alive:
                last = rows[-1][0] + 1 if rows else begin
                first[life] = min((number for number, *_, state in rows if state == State.OPEN), default=last)
                told.update((number, tokens) for number, _, _, tokens, _ in rows if number >= first[life])
        self._first, self._told = first, told
        return news

    def _others(self, connection: sqlite3.Connection) -> set[int]:
        return {life for (life,) in connection.execute("SELECT life FROM lives WHERE life <> ?", (self._life,))}
