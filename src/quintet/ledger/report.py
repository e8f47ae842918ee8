"""What was used, summed up: read from the file, also while a server writes."""

from __future__ import annotations

import csv
import io
import json
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quintet.errors import QuintetError
from quintet.ledger.schema import ARRIVED_ON, LedgerError, read

GROUPS = ("key", "model", "day", "dialect", "state")
SUMS = ("requests", "prompt", "completion", "cached", "reasoning", "total")

_ROWS = f"""
    SELECT key, model, {ARRIVED_ON} AS day, dialect, state, arrived, 1 AS requests, prompt, completion,
      cached, reasoning
    FROM requests WHERE arrived >= :since AND arrived < :until
    UNION ALL
    SELECT key, model, day, dialect, state, CAST(strftime('%s', day) AS REAL) AS arrived, requests, prompt, completion, cached, reasoning
    FROM totals WHERE CAST(strftime('%s', day) AS REAL) >= :since AND CAST(strftime('%s', day) AS REAL) < :until
"""  # noqa: S608  # the day is words of ours
_DAY_IN_TOTALS = """
    SELECT day FROM totals WHERE day = date(CAST(:time AS INTEGER), 'unixepoch') AND CAST(strftime('%s', day) AS REAL) < :time
      AND (:key IS NULL OR key = :key) LIMIT 1"""
_SUMS = """coalesce(sum(requests), 0), coalesce(sum(prompt), 0), coalesce(sum(completion), 0), coalesce(sum(cached), 0),
           coalesce(sum(reasoning), 0), coalesce(sum(prompt + completion), 0)"""


@dataclass(frozen=True, slots=True)
class Query:
    """Which requests, and how they are put together.

    Args:
        by: some of ``GROUPS``.
        since, until: Unix times: arrived from the first on, and before the second.
        key: of this ``Caller.id`` alone.
    """

    by: tuple[str, ...]
    since: float = 0.0
    until: float = float("inf")
    key: str | None = None


class WholeDayError(QuintetError):
    """A bound of time is inside a day of which only sums are kept: what of them arrived before it, nobody knows.

    Args:
        time: the bound, a Unix time.
        day: as a date.
    """

    def __init__(self, time: float, day: str) -> None:
        self.time, self.day = time, day
        super().__init__(f"{day} is kept as a whole day only.")


def usage(file: Path, query: Query) -> list[tuple[str | int, ...]]:
    """A row for each group, ordered: its words, then the sums. One moment of the file, whatever is being written.

    Raises:
        LedgerError: see ``schema.read``; or it cannot be read.
        WholeDayError: ``since`` or ``until`` is inside a day of which, for this key, only sums are kept.
        ValueError: it is grouped by something that is no group: these words become part of a statement.
    """
    if unknown := set(query.by) - set(GROUPS):
        raise ValueError(f"usage is grouped by some of {', '.join(GROUPS)}, got {', '.join(sorted(unknown))}")
    groups = ", ".join(query.by)
    columns = ", ".join((*query.by, _SUMS))
    sql = f"SELECT {columns} FROM ({_ROWS}) WHERE :key IS NULL OR key = :key"  # noqa: S608  # columns are words of ours
    if groups:
        sql += f" GROUP BY {groups} ORDER BY {groups}"
    connection = read(file)
    try:
        connection.execute("BEGIN")  # meanwhile no day becomes a sum
        for time in filter(math.isfinite, (query.since, query.until)):
            if found := connection.execute(_DAY_IN_TOTALS, {"time": time, "key": query.key}).fetchone():
                raise WholeDayError(time, *found)
        return connection.execute(sql, {"since": query.since, "until": query.until, "key": query.key}).fetchall()
    except sqlite3.Error as error:
        raise LedgerError(f"{file}: {error}.") from None
    finally:
        connection.close()


def as_table(by: Sequence[str], rows: Sequence[Sequence[str | int]]) -> str:
    """For people."""
    table = [[*by, *SUMS], *([f"{cell:,}" if isinstance(cell, int) else cell or "-" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for cells in table:
        words = [cell.ljust(width) for cell, width in zip(cells, widths[: len(by)], strict=False)]
        sums = [cell.rjust(width) for cell, width in zip(cells[len(by) :], widths[len(by) :], strict=True)]
        lines.append("  ".join(words + sums).rstrip())
    return "".join(f"{line}\n" for line in lines)


def as_csv(by: Sequence[str], rows: Sequence[Sequence[str | int]]) -> str:
    """RFC 4180, with a head."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([(*by, *SUMS), *rows])
    return text.getvalue()


def as_json(by: Sequence[str], rows: Sequence[Sequence[str | int]]) -> str:
    """A list of objects."""
    return json.dumps([dict(zip((*by, *SUMS), row, strict=True)) for row in rows], indent=2) + "\n"


FORMS = {"table": as_table, "csv": as_csv, "json": as_json}
