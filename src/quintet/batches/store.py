"""Files and batches in SQLite. Everything here blocks, and is called by one thread at a time, inside a transaction of its caller's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from quintet.batch import ENDED, Batch, Fault, File, NewBatch, Purpose, Status, Tokens
from quintet.batches.lines import Line
from quintet.errors import BadRequest, NotFound, counted, shorten

_FILE = "SELECT id, owner, name, purpose, size, created, expires, lines FROM files"
_BATCH = """SELECT id, owner, dialect, asked, created, expires, status, entered, output_file, error_file, total, completed, failed, faults,
  prompt, completion, reasoning, model FROM batches"""
_LINE = "SELECT line, start, size, name, seed FROM lines"
_GONE_S = 86_400
"""For so long the place of a file or batch that is gone is known: whoever pages through a list has come to its end by then."""

_ENDED = ", ".join(f"'{status.value}'" for status in ENDED)


class Stored(NamedTuple):
    """Files, and the bytes in them."""

    files: int
    size: int


@dataclass(frozen=True, slots=True)
class Quota:
    """Most files of a key, and most bytes in them."""

    files: int
    size: int

    def require(self, stored: Stored, more: int) -> None:
        """
        Raises:
            BadRequest: a file of ``more`` bytes does not fit beside what is stored.
        """
        if stored.files >= self.files or stored.size + more > self.size:
            rule = f"does not fit: a key may have {counted(self.files, 'file')}, with {counted(self.size, 'byte')} together; delete some"
            raise BadRequest("file", rule, f"{counted(more, 'byte')} beside {counted(stored.files, 'file')} with {stored.size}")


class Store:
    """What is kept, by a connection of ``schema.connect``."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    # -- files -----------------------------------------------------------------------------------------------------------------

    def add_file(self, file: File) -> None:
        """Keep what is told of a file; the same again changes nothing."""
        row = (file.id, file.owner, file.name, file.purpose.value, file.size, file.created, file.expires, file.lines)
        names = "id, owner, name, purpose, size, created, expires, lines"
        self._execute(f"INSERT INTO files ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING", row)

    def file(self, id_: str, owner: str, now: float) -> File:
        """
        Raises:
            NotFound: the owner has no such file.
        """
        row = self._fetch_one(f"{_FILE} WHERE id = ? AND owner = ? AND (expires IS NULL OR expires > ?)", (id_, owner, now))
        if row is None:
            raise NotFound(f"No such File object: {shorten(id_)}.")
        return _file(row)

    def files(self, owner: str, now: float, after: str, limit: int, *, ascending: bool, purpose: str) -> tuple[list[File], bool]:
        """A page of an owner's files, and whether there are more.

        Raises:
            BadRequest: ``after`` is none of them, nor was one lately.
        """
        where, values = "owner = ? AND (expires IS NULL OR expires > ?)", [owner, now]
        if purpose:
            where, values = f"{where} AND purpose = ?", [*values, purpose]
        return self._page(_FILE, "files", where, values, after, limit, ascending=ascending, make=_file)

    def add_upload(self, file: File, quota: Quota) -> None:
        """
        Raises:
            BadRequest: its owner would have more than ``quota``.
        """
        quota.require(self.stored(file.owner), file.size)
        self.add_file(file)

    def stored(self, owner: str) -> Stored:
        """What an owner's files come to."""
        row = self._fetch_one("SELECT count(*), coalesce(sum(size), 0) FROM files WHERE owner = ?", (owner,))
        assert row is not None
        return Stored(*row)

    def delete_file(self, id_: str, owner: str, now: float) -> None:
        """
        Raises:
            NotFound: the owner has no such file.
            BadRequest: a batch still needs it.
        """
        self.file(id_, owner, now)
        user = self._fetch_one(f"SELECT id FROM batches WHERE input = ? AND status NOT IN ({_ENDED})", (id_,))
        if user is not None:
            raise BadRequest("file_id", f"is the input of {user[0]}, which has not ended: cancel that first", shorten(id_))
        self._forget("files", "id = ?", (id_,), now)

    def expire(self, now: float, keep: float) -> None:
        """Forget files that have expired, unless a batch needs them, and batches that ended so long ago.

        Args:
            keep: seconds for which a batch is known after it ended, as its files are; 0 = for ever.
        """
        needed = f"SELECT input FROM batches WHERE status NOT IN ({_ENDED})"
        self._forget("files", f"expires <= ? AND id NOT IN ({needed})", (now,), now)
        if keep:
            self._forget("batches", f"status IN ({_ENDED}) AND json_extract(entered, '$.' || status) <= ?", (now - keep,), now)
        self._execute("DELETE FROM gone WHERE since <= ?", (now - _GONE_S,))

    def known_files(self) -> set[str]:
        """Ids of all files."""
        return {id_ for (id_,) in self._execute("SELECT id FROM files")}

    # -- batches ---------------------------------------------------------------------------------------------------------------

    def add_batch(self, batch: Batch, most_open: int) -> None:
        """
        Raises:
            NotFound: its owner has no such file.
            BadRequest: the file is for something else; or the owner has so many batches that have not ended.
        """
        file = self.file(batch.asked.input_file, batch.owner, batch.created)
        if file.purpose is not Purpose.BATCH:
            raise BadRequest("input_file_id", "must be a file with purpose batch", shorten(file.id))
        row = self._fetch_one(f"SELECT count(*) FROM batches WHERE owner = ? AND status NOT IN ({_ENDED})", (batch.owner,))
        assert row is not None
        if row[0] >= most_open:
            raise BadRequest("", f"There may be at most {most_open} batches at once that have not ended", str(row[0]))
        asked = msgspec.json.encode(batch.asked).decode()
        entered = msgspec.json.encode(batch.entered).decode()
        self._execute(
            "INSERT INTO batches (id, owner, dialect, asked, input, created, expires, status, entered) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (batch.id, batch.owner, batch.dialect, asked, file.id, batch.created, batch.expires, batch.status.value, entered),
        )

    def batch(self, id_: str, owner: str) -> Batch:
        """
        Raises:
            NotFound: the owner has no such batch.
        """
        row = self._fetch_one(f"{_BATCH} WHERE id = ? AND owner = ?", (id_, owner))
        if row is None:
            raise NotFound(f"No batch found with id {shorten(id_)}.")
        return _batch(row)

    def batches(self, owner: str, after: str, limit: int) -> tuple[list[Batch], bool]:
        """A page of an owner's batches, the newest first, and whether there are more.

        Raises:
            BadRequest: ``after`` is none of them, nor was one lately.
        """
        return self._page(_BATCH, "batches", "owner = ?", [owner], after, limit, ascending=False, make=_batch)

    def find_batch(self, id_: str) -> Batch | None:
        """A batch, whoever its owner is; ``None`` = there is none."""
        row = self._fetch_one(f"{_BATCH} WHERE id = ?", (id_,))
        return _batch(row) if row is not None else None

    def open_batches(self) -> list[Batch]:
        """Everybody's that have not ended, the oldest first."""
        return [_batch(row) for row in self._execute(f"{_BATCH} WHERE status NOT IN ({_ENDED}) ORDER BY number")]

    def enter(self, id_: str, status: Status, now: float, *before: Status) -> bool:
        """A batch comes to a status, if it is in one of those ``before``; whether it was."""
        row = self._fetch_one("SELECT status, entered FROM batches WHERE id = ?", (id_,))
        if row is None or Status(row[0]) not in before:
            return False
        entered = msgspec.json.encode({**msgspec.json.decode(row[1]), status.value: int(now)}).decode()
        self._execute("UPDATE batches SET status = ?, entered = ? WHERE id = ?", (status.value, entered, id_))
        return True

    def cancel(self, id_: str, owner: str, now: float) -> Batch:
        """
        Raises:
            NotFound: the owner has no such batch.
            BadRequest: it has ended, or is about to.
        """
        status = self.batch(id_, owner).status
        if status is not Status.CANCELLING and not self.enter(id_, Status.CANCELLING, now, Status.VALIDATING, Status.IN_PROGRESS):
            raise BadRequest(
                "batch_id", f"must be a batch of which lines are left to compute; this one's status is {status.value}", shorten(id_)
            )
        return self.batch(id_, owner)

    def reject(self, id_: str, faults: Sequence[Fault], now: float) -> None:
        """A batch's file is none that can be computed."""
        if self.enter(id_, Status.FAILED, now, Status.VALIDATING):
            self._execute("UPDATE batches SET faults = ? WHERE id = ?", (msgspec.json.encode(faults).decode(), id_))

    def accept(self, id_: str, lines: Iterable[Line], model: str, now: float) -> None:
        """A batch's file is in order: its lines, with their seeds."""
        if not self.enter(id_, Status.IN_PROGRESS, now, Status.VALIDATING):
            return
        number = self._number(id_)
        rows = ((number, line.number, line.start, line.size, line.name, line.seed) for line in lines)
        insert = "INSERT INTO lines (batch, line, start, size, name, seed) VALUES (?, ?, ?, ?, ?, ?)"
        total = self._connection.executemany(insert, rows).rowcount
        self._execute("UPDATE batches SET total = ?, model = ? WHERE number = ?", (total, model, number))

    # -- lines -----------------------------------------------------------------------------------------------------------------

    def pending(self, id_: str, after: int, limit: int) -> list[Line]:
        """Lines that are not done, from one number on."""
        where = "WHERE batch = ? AND line > ? AND done = 0 ORDER BY line LIMIT ?"
        return [Line(*row) for row in self._execute(f"{_LINE} {where}", (self._number(id_), after, limit))]

    def record(self, id_: str, line: int, body: bytes, tokens: Tokens, *, ok: bool) -> None:
        """What came of a line. The first is kept: what comes again is the same."""
        number = self._number(id_)
        if not self._execute("UPDATE lines SET done = 1 WHERE batch = ? AND line = ? AND done = 0", (number, line)).rowcount:
            return
        self._execute("INSERT INTO results (batch, ok, line, body) VALUES (?, ?, ?, ?)", (number, ok, line, body))
        self._execute(
            """UPDATE batches SET completed = completed + ?, failed = failed + ?, prompt = prompt + ?, completion = completion + ?,
              reasoning = reasoning + ? WHERE number = ?""",
            (ok, not ok, tokens.prompt, tokens.completion, tokens.reasoning, number),
        )

    def results(self, id_: str, after: int, *, ok: bool) -> Iterator[tuple[int, bytes]]:
        """What came of lines, in their order: numbers and what is written of them."""
        where = "WHERE batch = ? AND ok = ? AND line > ? ORDER BY line"
        return self._execute(f"SELECT line, body FROM results {where}", (self._number(id_), ok, after))

    def result_bytes(self, id_: str, *, ok: bool) -> int:
        """Of all that ``results`` gives."""
        row = self._fetch_one("SELECT coalesce(sum(length(body)), 0) FROM results WHERE batch = ? AND ok = ?", (self._number(id_), ok))
        assert row is not None
        return int(row[0])

    def complete(self, id_: str, now: float) -> bool:
        """If no line of a batch in progress is left, only its files are still to be written; whether it is so."""
        return not self.pending(id_, 0, 1) and self.enter(id_, Status.FINALIZING, now, Status.IN_PROGRESS)

    def finish(self, id_: str, status: Status, files: tuple[File | None, File | None], now: float) -> None:
        """A batch has ended, with its output and its error file. Its lines are forgotten."""
        self.enter(id_, status, now, Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING)
        for file in files:
            if file is not None:
                self.add_file(file)
        names = tuple(file.id if file is not None else None for file in files)
        self._execute("UPDATE batches SET output_file = ?, error_file = ? WHERE id = ?", (*names, id_))
        number = self._number(id_)
        for table in ("lines", "results"):
            self._execute(f"DELETE FROM {table} WHERE batch = ?", (number,))

    # -- inside ----------------------------------------------------------------------------------------------------------------

    def _number(self, id_: str) -> int:
        row = self._fetch_one("SELECT number FROM batches WHERE id = ?", (id_,))
        assert row is not None, f"{id_} is gone before it ended"
        return int(row[0])

    def _forget(self, table: str, where: str, values: tuple[Any, ...], now: float) -> None:
        """Delete rows of files or batches; only their places in the lists are kept, for a while."""
        self._execute(f"INSERT OR REPLACE INTO gone SELECT id, owner, number, ? FROM {table} WHERE {where}", (int(now), *values))
        self._execute(f"DELETE FROM {table} WHERE {where}", values)

    def _page(
        self, select: str, table: str, where: str, values: list[Any], after: str, limit: int, *, ascending: bool, make: Any
    ) -> tuple[list[Any], bool]:
        if after:
            # Ids of files and of batches differ; their numbers do not.
            kind = {"files": "file-*", "batches": "batch_*"}[table]
            places = f"SELECT id, owner, number FROM {table} UNION ALL SELECT id, owner, number FROM gone WHERE id GLOB '{kind}'"
            row = self._fetch_one(f"SELECT number FROM ({places}) WHERE id = ? AND owner = ?", (after, values[0]))
            if row is None:
                raise BadRequest("after", "must be the id of one of the list", shorten(after))
            where, values = f"{where} AND number {'>' if ascending else '<'} ?", [*values, row[0]]
        order = "ASC" if ascending else "DESC"
        rows = self._execute(f"{select} WHERE {where} ORDER BY number {order} LIMIT ?", [*values, limit + 1]).fetchall()
        return [make(row) for row in rows[:limit]], len(rows) > limit

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def _fetch_one(self, statement: str, values: Sequence[Any]) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._execute(statement, values).fetchone()
        return row


def _file(row: tuple[Any, ...]) -> File:
    id_, owner, name, purpose, size, created, expires, lines = row
    return File(id=id_, owner=owner, name=name, purpose=Purpose(purpose), size=size, created=created, expires=expires, lines=lines)


def _batch(row: tuple[Any, ...]) -> Batch:
    id_, owner, dialect, asked, created, expires, status, entered, *rest = row
    output_file, error_file, total, completed, failed, faults, prompt, completion, reasoning, model = rest
    return Batch(
        id=id_,
        owner=owner,
        dialect=dialect,
        asked=msgspec.json.decode(asked, type=NewBatch),
        created=created,
        expires=expires,
        status=Status(status),
        entered=msgspec.json.decode(entered),
        output_file=output_file,
        error_file=error_file,
        total=total,
        completed=completed,
        failed=failed,
        faults=msgspec.json.decode(faults, type=tuple[Fault, ...]),
        tokens=Tokens(prompt, completion, reasoning),
        model=model,
    )
