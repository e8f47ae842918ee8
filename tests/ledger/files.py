"""What is in a ledger's file, read without the code that writes it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from quintet.ledger.rows import Row, State


def rows_in(file: Path) -> dict[int, Row | None]:
    """All rows, by number."""
    with closing(sqlite3.connect(file)) as connection:
        try:
            found = [Row(*row) for row in connection.execute("SELECT * FROM requests")]
        except sqlite3.OperationalError:  # killed before there was a table
            return {}
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return {row.number: row._replace(state=State(row.state)) for row in found}


def totals_in(file: Path) -> list[tuple[str | int, ...]]:
    """The sums of rows that are gone."""
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT * FROM totals ORDER BY 1, 2, 3, 4, 5").fetchall()
