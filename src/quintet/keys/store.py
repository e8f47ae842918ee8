"""The key store: a SQLite file that ``quintet keys`` writes and a server reads, at the same time.

It holds digests, never keys. A server only reads, and only where the file's times, or the count of changes in its header, say that there is
something new. All values are bound parameters.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated

import msgspec

from quintet.errors import shorten
from quintet.keys.file import BusyError, KeyFileError, check_private, look, unreadable
from quintet.keys.key import MOST_PRIORITY, Key, Scope
from quintet.quota import MOST, Limits

PREFIX = "quintet_"
"""Of every generated key, so that people and secret scanners know one when they see it."""

_WAY_OUT = "make one with quintet keys add"
_SECRET_BYTES = 32
_FORMAT = 0x51544B31  # "QTK1"
_BUSY_S = 5.0  # a command waits so long for another one; a server does not wait
# https://sqlite.org/fileformat.html, "File change counter": "a 4-byte big-endian integer at offset 24 that is incremented whenever the
# database file is unlocked after having been modified".
_CHANGES = slice(24, 28)

_CHANGING = {
    sqlite3.SQLITE_BUSY: "another command is changing it; try again",
    sqlite3.SQLITE_READONLY: "a change of it was broken off; run quintet keys list as its owner, which undoes what was done of it",
}
"""What SQLite says where there are keys, only not now, as people can mend it."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]

_SCHEMA = (
    """
CREATE TABLE keys (
  id TEXT PRIMARY KEY, digest BLOB NOT NULL, name TEXT NOT NULL, created REAL NOT NULL, expires REAL, revoked REAL,
  models TEXT NOT NULL, priority INTEGER NOT NULL, scopes TEXT NOT NULL,
  requests_per_minute INTEGER NOT NULL, requests_per_day INTEGER NOT NULL, tokens_per_minute INTEGER NOT NULL,
  tokens_per_day INTEGER NOT NULL, parallel INTEGER NOT NULL, budget INTEGER NOT NULL
)""",
    "CREATE UNIQUE INDEX live_names ON keys (name) WHERE revoked IS NULL",
    f"PRAGMA application_id = {_FORMAT}",
)
_INSERT = """
INSERT INTO keys VALUES (:id, :digest, :name, :created, :expires, :revoked, :models, :priority, :scopes,
  :requests_per_minute, :requests_per_day, :tokens_per_minute, :tokens_per_day, :parallel, :budget)
"""
# A name before an id, so that each key can be named whatever another is called.
_FIND = "SELECT * FROM keys WHERE (name = :which OR id = :which) AND revoked IS NULL ORDER BY name = :which DESC"
_UPDATE = """
UPDATE keys SET name = :name, expires = :expires, revoked = :revoked, models = :models, priority = :priority, scopes = :scopes,
  requests_per_minute = :requests_per_minute, requests_per_day = :requests_per_day, tokens_per_minute = :tokens_per_minute,
  tokens_per_day = :tokens_per_day, parallel = :parallel, budget = :budget
WHERE id = :id
"""


class UnknownKeyError(KeyFileError):
    """No key of this name or id is there that is not revoked."""


class KeyStore:
    """See the module."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # -- the server's side

    def settle(self) -> None:
        """Wait for a command that changes it, and undo what one has left half done that was killed: once, before a server serves.

        Raises:
            KeyFileError: see ``read``.
        """
        check_private(self.path, _WAY_OUT)
        with _sqlite_errors(self.path):
            _connect(self.path, "rw", _BUSY_S).close()  # a first look is enough for SQLite to do both

    def stamp(self) -> tuple[int, ...]:
        """Differs when the store has changed.

        Raises:
            KeyFileError: it cannot be read.
        """
        info = look(self.path, _WAY_OUT)
        with _sqlite_errors(self.path), self.path.open("rb", buffering=0) as file:
            changes = int.from_bytes(file.read(_CHANGES.stop)[_CHANGES])
        # The time, since another store that is copied over this one may have seen as many changes; the count, since times are coarse.
        return info.st_ino, info.st_mode, info.st_size, info.st_mtime_ns, changes

    # -- both sides

    def read(self) -> list[Key]:
        """All keys, also those that are not in force any more, as they were made.

        Raises:
            BusyError: it is being changed.
            KeyFileError: missing, readable by everybody, writable by others, no key store, or with a key in it that is none.
        """
        check_private(self.path, _WAY_OUT)
        with _sqlite_errors(self.path), contextlib.closing(_connect(self.path, "ro", 0.0)) as reader:
            rows = [dict(row) for row in reader.execute("SELECT * FROM keys ORDER BY created, rowid")]
        return [self._key_of(row) for row in rows]

    def _key_of(self, row: dict[str, object]) -> Key:
        try:
            return _key(row)
        except (msgspec.DecodeError, ValueError):
            raise KeyFileError(f"{self.path}: the key {shorten(row.get('id'))} is none that this version of quintet keys writes") from None

    # -- the command's side

    def add(self, key: Key) -> str:
        """Store a new key, with the name, limits and scopes of ``key``; the key itself, which nothing can tell again.

        Raises:
            KeyFileError: the file is not usable, or a key of this name is not revoked: one that has expired can be renewed.
        """
        secret = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        with self._writing() as writer:
            taken = writer.execute("SELECT expires FROM keys WHERE name = ? AND revoked IS NULL", (key.name,)).fetchone()
            if taken is not None:
                way_out = "is in force already; revoke it first"
                if taken["expires"] is not None and taken["expires"] <= key.created:
                    way_out = "has expired; renew it with quintet keys set --expires, revoke it"
                raise KeyFileError(f"{self.path}: a key named {shorten(key.name)} {way_out}, or choose another name")
            writer.execute(_INSERT, _row(replace(key, digest=hashlib.sha256(secret.encode()).digest())))
        return secret

    def change(self, which: str, change: Callable[[Key], Key]) -> None:
        """Give the key with this name or id, expired or not, what ``change`` makes of it, all but the digest and the time of making.

        Raises:
            UnknownKeyError: there is none, or it is revoked.
            KeyFileError: the file is not usable.
        """
        check_private(self.path, _WAY_OUT)  # none is made
        with self._writing() as writer:  # what is read here is what another command has left
            row = writer.execute(_FIND, {"which": which}).fetchone()
            if row is None:
                raise UnknownKeyError(f"{self.path}: no key {shorten(which)} is in force")
            writer.execute(_UPDATE, _row(change(self._key_of(dict(row)))))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction; the file is made, for its owner alone, if it is not there."""
        with _sqlite_errors(self.path):
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            except FileExistsError:
                check_private(self.path, _WAY_OUT)
            with contextlib.closing(_connect(self.path, "rw", _BUSY_S)) as writer:
                writer.execute("BEGIN IMMEDIATE")
                if _pragma(writer, "schema_version") == 0:
                    for statement in _SCHEMA:
                        writer.execute(statement)
                yield writer
                writer.execute("COMMIT")


def _connect(path: Path, mode: str, timeout: float) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", timeout, uri=True, isolation_level=None)
    connection.row_factory = sqlite3.Row
    empty = _pragma(connection, "schema_version") == 0  # asked first: what is made meanwhile has both
    if (empty and mode == "ro") or (not empty and _pragma(connection, "application_id") != _FORMAT):
        connection.close()
        raise KeyFileError(f"{path} is not a key store; {_WAY_OUT}")
    return connection


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)


@contextlib.contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    """Turn the errors of SQLite and of the system into ``KeyFileError``, in one line."""
    try:
        yield
    except sqlite3.OperationalError as error:
        # A command that was killed in the middle of a change leaves it to be undone by the next one, which whoever only reads must not do.
        why = _CHANGING.get(error.sqlite_errorcode & 0xFF)
        raise (BusyError if why else KeyFileError)(f"{path}: {why or error}") from None
    except sqlite3.Error as error:
        foreign = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB
        raise KeyFileError(f"{path} is not a key store; {_WAY_OUT}" if foreign else f"{path}: {error}") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _row(key: Key) -> dict[str, object]:
    return {
        "id": key.id,
        "digest": key.digest,
        "name": key.name,
        "created": key.created,
        "expires": key.expires,
        "revoked": key.revoked,
        "models": json.dumps(key.models),
        "priority": key.priority,
        "scopes": ",".join(sorted(scope.value for scope in key.scopes)),
        **asdict(key.limits),
    }


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    """A key's row: whatever anybody wrote into the file is held to what ``quintet keys`` writes. An unknown column may be a limit."""

    id: str
    digest: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    name: str
    created: float
    expires: float | None
    revoked: float | None
    models: str
    priority: Annotated[int, msgspec.Meta(ge=1, le=MOST_PRIORITY)]
    scopes: str
    requests_per_minute: _Count
    requests_per_day: _Count
    tokens_per_minute: _Count
    tokens_per_day: _Count
    parallel: _Count
    budget: _Count


def _key(row: dict[str, object]) -> Key:
    """
    Raises:
        msgspec.DecodeError, ValueError: it is no key's.
    """
    checked = msgspec.convert(row, _Row)
    return Key(
        digest=checked.digest,
        name=checked.name,
        created=checked.created,
        expires=checked.expires,
        revoked=checked.revoked,
        models=msgspec.json.decode(checked.models, type=tuple[str, ...]),
        limits=Limits(**{field.name: getattr(checked, field.name) for field in fields(Limits)}),
        priority=checked.priority,
        scopes=frozenset(Scope(word) for word in checked.scopes.split(",") if word),
        generated=True,
    )
