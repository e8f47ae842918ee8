"""The key store, while others write it, and as it must never be."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.config import ServerConfig
from quintet.keys.file import BusyError, KeyFileError
from quintet.keys.key import Key, Scope
from quintet.keys.ring import LOOK_S, KeyRing
from quintet.keys.sources import key_sources
from quintet.keys.store import PREFIX, KeyStore
from quintet.quota import Limits


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def ring(path: Path, clock: Clock) -> KeyRing:
    return KeyRing((), [KeyStore(path)], clock, clock)


def alice(store: KeyStore) -> Key:
    (found,) = (key for key in store.read() if key.name == "alice")
    return found


FULL = Key(
    b"",
    "alice",
    created=1.5,
    expires=2e9,
    models=("smol*", "coder"),
    limits=Limits(1, 2, 3, 4, 5, 6),
    priority=7,
    scopes=frozenset({Scope.METRICS, Scope.ADMIN}),
    generated=True,
)


def test_a_key_comes_out_as_it_went_in_and_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    secret = KeyStore(path).add(FULL)
    assert secret.startswith(PREFIX) and len(secret) == len(PREFIX) + 43, "256 bits"
    (found,) = KeyStore(path).read()
    assert replace(found, digest=b"") == FULL
    assert secret.encode() not in path.read_bytes()
    assert secret.removeprefix(PREFIX).encode() not in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.fault("F02")
def test_every_change_counts_within_a_second(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.db", Clock()
    store = KeyStore(path)
    store.add(Key(b"", "first"))
    keys = ring(path, clock)
    secret = store.add(Key(b"", "alice")).encode()

    def now() -> Key | None:
        clock.now += LOOK_S
        return keys.find(secret)

    assert LOOK_S < 1
    assert now() == alice(store)
    for change in ({"models": ("x",)}, {"limits": Limits(budget=3)}, {"priority": 2}, {"scopes": frozenset({Scope.ADMIN})}):
        store.change("alice", partial(replace, **change))
        assert now() == alice(store)
    store.change(alice(store).id, lambda key: replace(key, expires=clock.now + 10))
    assert now() is not None
    clock.now += 10
    assert keys.find(secret) is None, "it is looked at on every request whether a key has expired"
    store.change("alice", lambda key: replace(key, expires=None))
    assert now() is not None
    store.change("alice", lambda key: replace(key, revoked=clock.now))
    assert now() is None


def test_another_store_with_as_many_changes_that_is_copied_over_it_counts_too(tmp_path: Path) -> None:
    """As ``cp`` does it: the file stays the same one, of the same size."""
    old, new = (KeyStore(tmp_path / name).add(replace(FULL, expires=None)) for name in ("keys.db", "new.db"))
    clock, path = Clock(), tmp_path / "keys.db"
    keys = ring(path, clock)
    assert keys.find(old.encode()) is not None
    path.write_bytes((tmp_path / "new.db").read_bytes())
    clock.now += LOOK_S
    assert keys.find(old.encode()) is None
    assert keys.find(new.encode()) is not None


def test_a_name_is_one_keys_while_it_is_in_force(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys.db")
    store.add(Key(b"", "alice"))
    with pytest.raises(KeyFileError, match="a key named 'alice' is in force already"):
        store.add(Key(b"", "alice"))
    store.change("alice", lambda key: replace(key, revoked=1.0))
    store.add(Key(b"", "alice"))
    assert [key.name for key in store.read()] == ["alice", "alice"]


def test_a_key_that_is_named_as_anothers_id_is_the_one_that_is_meant_and_the_other_stays(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys.db")
    store.add(Key(b"", "alice"))
    other = alice(store)
    store.add(Key(b"", other.id, created=1.0))
    store.change(other.id, lambda key: replace(key, revoked=2.0))
    assert [(key.name, key.revoked) for key in store.read()] == [("alice", None), (other.id, 2.0)]
    store.change(other.id, lambda key: replace(key, revoked=3.0))
    assert [(key.name, key.revoked) for key in store.read()] == [("alice", 3.0), (other.id, 2.0)]


def test_a_change_of_a_store_that_is_not_there_makes_none(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="No such file"):
        KeyStore(tmp_path / "none").change("alice", lambda key: key)
    assert not [*tmp_path.iterdir()]


HOSTILE = ["' OR 1=1 --", "a'; DROP TABLE keys; --", "%s%s%n", "${jndi:ldap://x}", "\0", "a" * 100_000, "\ud7ff\u202e", '{"$ne": 1}']


@pytest.mark.fault("F06")
@settings(max_examples=25, deadline=None)
@given(word=st.sampled_from(HOSTILE) | st.text(st.characters(codec="utf-8")))
def test_no_text_is_ever_part_of_a_statement(word: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("store") / "keys.db"
    store = KeyStore(path)
    store.add(FULL)
    before = path.read_bytes()
    for which in (word, f"{word}' OR 'a'='a"):
        with pytest.raises(KeyFileError, match="no key"):
            store.change(which, lambda key: key)
    assert ring(path, Clock()).find(word.encode()) is None
    assert path.read_bytes() == before
    store.add(replace(FULL, name=word, models=(word,)))
    assert [(key.name, key.models) for key in store.read()] == [("alice", FULL.models), (word, (word,))]


@pytest.mark.fault("D14")
@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620])
def test_a_store_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys.db"
    KeyStore(path).add(FULL)
    path.chmod(mode)
    for use in (KeyStore(path).read, lambda: KeyStore(path).add(FULL)):
        with pytest.raises(KeyFileError, match="chmod 600"):
            use()


@pytest.mark.parametrize("content", [b"", b"sk-plain\n", b"SQLite format 3\0" + bytes(100)])
def test_a_file_that_is_no_store_is_refused_in_one_line_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys.txt"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="keys.txt") as caught:
        KeyStore(path).read()
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content
    with pytest.raises(KeyFileError, match="No such file"):
        KeyStore(tmp_path / "none").read()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE keys SET scopes = 'root'",
        "UPDATE keys SET models = 'smol*'",
        "UPDATE keys SET models = '[1, 2]'",
        "UPDATE keys SET models = '{}'",
        "UPDATE keys SET priority = 'first'",
        "UPDATE keys SET priority = 0",
        "UPDATE keys SET priority = 1000000",
        "UPDATE keys SET budget = -1",
        "UPDATE keys SET tokens_per_day = 1.5",
        "UPDATE keys SET expires = 'soon'",
        "UPDATE keys SET name = x'00ff'",
        "UPDATE keys SET digest = x'00'",
        "ALTER TABLE keys ADD COLUMN tokens_per_second INTEGER",
        "ALTER TABLE keys RENAME COLUMN budget TO purse",
    ],
)
def test_a_row_that_no_command_writes_is_refused_in_one_line(change: str, tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.db", Clock()
    secret = KeyStore(path).add(FULL).encode()
    keys = ring(path, clock)
    assert keys.find(secret) is not None
    with sqlite3.connect(path) as other:
        other.execute(change)
    other.close()
    with pytest.raises(KeyFileError, match="is none that this version of quintet keys writes") as caught:
        KeyStore(path).read()
    assert "\n" not in str(caught.value)
    clock.now += LOOK_S
    assert keys.find(secret) is None, "and not an error for whoever asks, or a key whose limits nobody knows"


def test_another_programs_database_gets_no_keys(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE cats (name)")
    other.commit()
    other.close()
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="is not a key store"):
        KeyStore(path).add(FULL)


def test_while_a_change_is_being_written_the_keys_stay_as_they_were(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.db", Clock()
    store = KeyStore(path)
    secret = store.add(Key(b"", "alice")).encode()
    keys = ring(path, clock)
    store.change("alice", lambda key: replace(key, priority=2))
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    with pytest.raises(BusyError):
        store.read()
    clock.now += LOOK_S
    found = keys.find(secret)
    assert found is not None and found.priority == 1
    writer.execute("ROLLBACK")
    writer.close()
    clock.now += LOOK_S
    found = keys.find(secret)
    assert found is not None and found.priority == 2


def killed_in_a_change(path: Path) -> None:
    """A command that had written a part of its change into the file."""
    code = (
        "import os, sqlite3, sys\n"
        "writer = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "writer.execute('PRAGMA cache_size = 1')\n"
        "writer.execute('BEGIN IMMEDIATE')\n"
        "writer.execute('CREATE TABLE more (x)')\n"
        "writer.executemany('INSERT INTO more VALUES (randomblob(1000))', [()] * 1000)\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert path.with_name(f"{path.name}-journal").exists()


def test_what_a_command_has_left_that_was_killed_is_undone_where_a_server_starts_and_by_none_that_runs(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.db", Clock()
    secret = KeyStore(path).add(Key(b"", "alice")).encode()
    keys, before = ring(path, clock), path.read_bytes()
    killed_in_a_change(path)
    clock.now += LOOK_S
    assert keys.find(secret) is not None and path.read_bytes() != before
    with pytest.raises(BusyError, match="a change of it was broken off; run quintet keys list as its owner"):
        KeyStore(path).read()
    key_sources(ServerConfig(keys=path))
    assert path.read_bytes() == before
    assert ring(path, clock).find(secret) is not None


def test_a_server_that_starts_waits_for_a_change(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.db", Clock()
    secret = KeyStore(path).add(Key(b"", "alice")).encode()
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN EXCLUSIVE")
    with pytest.raises(BusyError, match="another command is changing it"):
        KeyStore(path).read()
    over = threading.Timer(0.3, writer.execute, ("ROLLBACK",))
    over.start()
    assert KeyRing((), key_sources(ServerConfig(keys=path)), clock, clock).find(secret) is not None
    over.join()
    writer.close()


def test_commands_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    KeyStore(path).add(Key(b"", "alice"))
    code = (
        "import dataclasses, sys, pathlib; from quintet.keys.key import Key; from quintet.keys.store import KeyStore\n"
        "store = KeyStore(pathlib.Path(sys.argv[1]))\n"
        "for at in range(10):\n"
        "  store.add(Key(b'', f'{sys.argv[2]}-{at}'))\n"
        "  store.change('alice', lambda key: dataclasses.replace(key, models=(*key.models, f'{sys.argv[2]}-{at}')))"
    )
    commands = [subprocess.Popen([sys.executable, "-c", code, str(path), str(number)]) for number in range(4)]
    assert [command.wait(60) for command in commands] == [0] * 4
    assert {key.name for key in KeyStore(path).read()} == {"alice", *alice(KeyStore(path)).models}
    assert len(alice(KeyStore(path)).models) == 40


@pytest.mark.fault("F03")
def test_a_look_up_compares_only_digests_keyed_with_a_secret_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So its time says nothing of a key: the guess does not decide how its keyed digest compares with those that are stored."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("quintet.keys.ring.hmac.compare_digest", compare)
    store = KeyStore(tmp_path / "keys.db")
    secret = store.add(FULL).encode()
    one, other = ring(store.path, Clock()), ring(store.path, Clock())
    assert one.find(secret) == other.find(secret) == alice(store)
    digest = alice(store).digest
    assert [len(text) for pair in compared for text in pair] == [32] * 4
    assert len({text for pair in compared for text in (*pair, digest)}) == 3, "each process has a secret of its own"
    assert secret not in repr(vars(one)).encode() and digest.hex().encode() not in repr(list(one._entries)).encode()
