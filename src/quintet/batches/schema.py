"""The tables of a folder of batches, and how its database is opened."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

from quintet.batches.folder import BatchFolderError

APPLICATION = 0x51424348
"""What marks a SQLite file as one of batches."""

VERSION = 1

BUSY_S = 10.0
"""Most seconds that one process waits for another's write: of the server that hands over to this one."""

_TABLES = """
CREATE TABLE files (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, name TEXT NOT NULL, purpose TEXT NOT NULL,
  size INTEGER NOT NULL, created INTEGER NOT NULL, expires INTEGER, lines INTEGER NOT NULL);
CREATE TABLE batches (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, dialect TEXT NOT NULL, asked TEXT NOT NULL,
  input TEXT NOT NULL, created INTEGER NOT NULL, expires INTEGER, status TEXT NOT NULL, entered TEXT NOT NULL, output_file TEXT,
  error_file TEXT, total INTEGER NOT NULL DEFAULT 0, completed INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
  faults TEXT NOT NULL DEFAULT '[]', prompt INTEGER NOT NULL DEFAULT 0, completion INTEGER NOT NULL DEFAULT 0,
  reasoning INTEGER NOT NULL DEFAULT 0, model TEXT NOT NULL DEFAULT '');
CREATE TABLE lines (
  batch INTEGER NOT NULL, line INTEGER NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL, name TEXT NOT NULL, seed INTEGER NOT NULL,
  done INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (batch, line)) WITHOUT ROWID;
CREATE TABLE results (batch INTEGER NOT NULL, ok INTEGER NOT NULL, line INTEGER NOT NULL, body BLOB NOT NULL, UNIQUE (batch, ok, line));
"""

# Whoever lists files and deletes each as it comes asks for the next page after one that is gone. A folder of before gets the table too, and
# a Quintet of before, which hands such a folder over or gets it back, has no use for it: so the version is still the first.
_GONE = "CREATE TABLE IF NOT EXISTS gone (id TEXT PRIMARY KEY, owner TEXT NOT NULL, number INTEGER NOT NULL, since INTEGER NOT NULL)"


def connect(file: Path) -> sqlite3.Connection:
    """A connection for one thread, which need not be this one. What is committed is on the disk.

    Raises:
        BatchFolderError: the file cannot be opened or written, is none of ours, is of another version, or is open to others.
    """
    try:
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))  # SQLite gives the files beside it the same mode
        if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise BatchFolderError(f"{file} may be read by others; chmod 600 it.")
        connection = sqlite3.connect(file, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            _prepare(file, connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            connection.close()
            raise
    except OSError as error:
        raise BatchFolderError(f"{file}: {error.strerror}.") from None
    except sqlite3.Error as error:
        raise BatchFolderError(f"{file}: {error}.") from None
    return connection


def _prepare(file: Path, connection: sqlite3.Connection) -> None:
    mark, version = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("application_id", "user_version"))
    if mark != APPLICATION and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise BatchFolderError(f"{file} is another program's database.")
    if mark == APPLICATION and version != VERSION:
        raise BatchFolderError(f"{file} is of version {version}, and this Quintet knows version {VERSION}.")
    if mark != APPLICATION:
        for statement in filter(str.strip, _TABLES.split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute(_GONE)
