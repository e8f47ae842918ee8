"""The ledger's file: its tables, its version, and how it is opened."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from quintet.errors import QuintetError
from quintet.ledger.rows import Row

APPLICATION = 0x514C4744
"""What marks a SQLite file as a ledger."""

T = TypeVar("T")

BUSY_S = 5.0
"""Most seconds that one process waits for another's write: of the server that hands over to this one."""

_SQLITE_S = 0.01
_AGAIN_S = 0.001
"""SQLite itself looks for a lock ever less often, at last each tenth of a second. Beside a server that writes all the time to a slow disk
the lock is free for less than a millisecond between two of its writes; so it is looked for each millisecond."""

STEPS = (
    """
    CREATE TABLE requests (
      number INTEGER PRIMARY KEY, id TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, dialect TEXT NOT NULL, n INTEGER NOT NULL,
      arrived REAL NOT NULL, first REAL, total REAL, prompt INTEGER NOT NULL, completion INTEGER NOT NULL, cached INTEGER NOT NULL,
      reasoning INTEGER NOT NULL, state TEXT NOT NULL, finish TEXT NOT NULL, status INTEGER NOT NULL);
    CREATE INDEX requests_arrived ON requests (arrived);
    CREATE TABLE totals (
      day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, dialect TEXT NOT NULL, state TEXT NOT NULL, requests INTEGER NOT NULL,
      prompt INTEGER NOT NULL, completion INTEGER NOT NULL, cached INTEGER NOT NULL, reasoning INTEGER NOT NULL,
      PRIMARY KEY (day, key, model, dialect, state)) WITHOUT ROWID;
    CREATE TABLE lives (life INTEGER PRIMARY KEY AUTOINCREMENT, seen REAL NOT NULL);
    """,
)
"""What makes a file of each version out of one of the version before; a file's version is the number of steps that it has seen.

A step only adds, with defaults: a server of the version before that still drains writes on into the same file.
"""

ARRIVED_ON = "date(CAST(arrived AS INTEGER), 'unixepoch')"
"""The day of a request, as SQL: in reports, and where a row becomes a part of a day's totals. SQLite rounds a time to a millisecond before
it names its day, so it is cut to whole seconds first, or a request of a day's last half of a millisecond counts for the next day."""

_ONE_ROW = f"({', '.join('?' * len(Row._fields))})"
_INSERT = f"INSERT INTO requests ({', '.join(Row._fields)}) VALUES"
_UPDATE = """ON CONFLICT (number) DO UPDATE SET
  first = excluded.first, total = excluded.total, prompt = excluded.prompt, completion = excluded.completion, cached = excluded.cached,
  reasoning = excluded.reasoning, state = excluded.state, finish = excluded.finish, status = excluded.status"""


def upsert(count: int) -> str:
    """The statement that writes so many rows as they stand now."""
    return " ".join((_INSERT, ", ".join([_ONE_ROW] * count), _UPDATE))


def patiently(work: Callable[[], T]) -> T:
    """Do what changes nothing if the file is locked, again and again until it is not.

    Raises:
        sqlite3.Error: another process has had it locked for ``BUSY_S``; or what the work raises.
    """
    until = time.monotonic() + BUSY_S
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if not _locked(error) or time.monotonic() > until:
                raise
        time.sleep(_AGAIN_S)


def _locked(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY  # the low byte of an extended code


class LedgerError(QuintetError):
    """The ledger's file cannot be used."""


def connect(file: Path) -> sqlite3.Connection:
    """A connection that writes, to a file of the newest version: it is made, or brought there. For one thread at a time.

    What is committed is on the disk: a write-ahead log, synchronised at each commit. Whatever may find it locked is for ``patiently``.

    Raises:
        LedgerError: the file cannot be opened or written, is no regular one, none of ours, of a newer version, or open to others.
    """
    try:
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))  # SQLite gives the files beside it the same mode
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode):
            raise LedgerError(f"{file} is not a file.")
        if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
            raise LedgerError(f"{file} may be read by everybody or written by others; chmod 600 it.")
        connection = sqlite3.connect(file, timeout=_SQLITE_S, isolation_level=None, check_same_thread=False)
        patiently(lambda: version(file, connection))  # before anything of it is changed
        patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))
        connection.execute("PRAGMA synchronous = FULL")
        patiently(lambda: _upgrade(file, connection))
    except FileNotFoundError:
        raise LedgerError(f"{file}: there is no folder {file.parent}; make it first.") from None
    except OSError as error:
        raise LedgerError(f"{file}: {error.strerror}.") from None
    except sqlite3.Error as error:
        raise LedgerError(f"{file}: {error}.") from None
    return connection


def read(file: Path) -> sqlite3.Connection:
    """A connection that reads, also while a server writes.

    Raises:
        LedgerError: there is no such file, it is none of ours, or of a newer version.
    """
    try:
        if not file.is_file():
            raise LedgerError(f"{file} is not a file." if file.exists() else f"{file}: there is no such file.")
        connection = sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)
        connection.execute("PRAGMA query_only = 1")  # not opened read-only: after a crash it is a reader that must look through the log
        if version(file, connection) == 0:
            raise LedgerError(f"{file} is empty.")
    except OSError as error:
        raise LedgerError(f"{file}: {error.strerror}.") from None
    except sqlite3.Error as error:
        raise LedgerError(f"{file}: {error}.") from None
    return connection


def version(file: Path, connection: sqlite3.Connection) -> int:
    """How many of the steps the file has seen; 0 = it is empty.

    Raises:
        LedgerError: it is none of ours, or of a newer version.
    """
    mark, found = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("application_id", "user_version"))
    if mark != APPLICATION:
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise LedgerError(f"{file} is another program's database.")
        return 0
    if found > len(STEPS):
        raise LedgerError(f"{file} is of version {found}, and this Quintet knows versions up to {len(STEPS)}: use the newer one.")
    return found


def _upgrade(file: Path, connection: sqlite3.Connection) -> None:
    if version(file, connection) == len(STEPS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in STEPS[version(file, connection) :]:  # asked again: another process may have come first
            for statement in filter(str.strip, step.split(";")):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {len(STEPS)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
