"""A ledger that another process has locked: a server that hands over, or a clean-up, on a disk that is slow."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.ledger.files import rows_in

from quintet.config import LedgerConfig
from quintet.errors import Overloaded
from quintet.events import Usage
from quintet.ledger import schema, writer
from quintet.ledger.ledger import About, Ledger
from quintet.ledger.rows import Row, State
from quintet.ledger.schema import LedgerError, patiently
from quintet.ledger.store import Store

pytestmark = pytest.mark.fault("D06")
PATIENCE_S = 60


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """As by another process."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_a_lock_that_is_free_for_a_moment_only_is_had_though_its_holder_takes_it_again_and_again(tmp_path: Path) -> None:
    """The holder's commits are slow, as on a busy disk; with SQLite's own way of waiting one write in fifteen gave up after 5 s."""
    store = Store(tmp_path / "ledger.db")
    first, stop = store.begin(0.0), threading.Event()

    def hold() -> None:
        with closing(sqlite3.connect(tmp_path / "ledger.db", timeout=PATIENCE_S, isolation_level=None)) as other:
            while not stop.is_set():
                other.execute("BEGIN IMMEDIATE")
                time.sleep(0.08)
                other.execute("COMMIT")
                time.sleep(0.001)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        for number in range(first, first + 8):
            time.sleep(0.1)
            store.write({number: Row(number, "", "", "", "", 1, 0.0)})
        other = Store(tmp_path / "ledger.db")
        other.begin(0.0)
    finally:
        stop.set()
        holder.join()
    assert len(rows_in(tmp_path / "ledger.db")) == 8
    store.close()
    other.close()


def test_who_waits_gives_up_in_the_end_and_at_once_where_waiting_is_no_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "BUSY_S", 0.05)
    file, tries = tmp_path / "ledger.db", []
    store = Store(file)
    with locked(file), pytest.raises(sqlite3.OperationalError, match="locked"):
        store.begin(0.0)
    store.begin(0.0)
    with locked(file), pytest.raises(sqlite3.OperationalError, match="locked"):
        store.probe()
    store.probe()

    def fails() -> None:
        tries.append(1)
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        patiently(fails)
    assert len(tries) == 1
    store.close()
    with locked(file), pytest.raises(LedgerError, match="database is locked"):
        Ledger(LedgerConfig(file, False))


@pytest.mark.parametrize(("mode", "lock"), [("DELETE", "EXCLUSIVE"), ("DELETE", "IMMEDIATE"), ("WAL", "IMMEDIATE")])
def test_a_new_file_that_another_process_has_locked_is_opened_once_that_lets_go(tmp_path: Path, mode: str, lock: str) -> None:
    """Of two that start at once both want to make the tables."""
    file = tmp_path / "ledger.db"
    file.touch(0o600)
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute(f"PRAGMA journal_mode = {mode}")
        other.execute(f"BEGIN {lock}")
        letting_go = threading.Timer(0.2, other.execute, ["ROLLBACK"])
        letting_go.start()
        store = Store(file)
        letting_go.join()
    store.begin(0.0)
    store.close()


def test_a_file_is_waited_for_also_while_its_log_is_recovered() -> None:
    locked = sqlite3.OperationalError("database is locked")
    locked.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
    outcomes: list[Exception | None] = [locked, locked, None]

    def work() -> str:
        if (error := outcomes.pop(0)) is not None:
            raise error
        return "done"

    assert patiently(work) == "done"


@pytest.mark.parametrize("serve", [False, True])
def test_while_the_file_is_locked_requests_are_refused_or_their_rows_wait_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: bool
) -> None:
    monkeypatch.setattr(schema, "BUSY_S", 0.05)
    monkeypatch.setattr(writer, "RETRY_S", 0.01)
    file = tmp_path / "ledger.db"

    async def scenario(ledger: Ledger) -> None:
        entry = await ledger.open(About(id="before", key="", model="m", dialect="openai", n=1, arrived=ledger.clock()), lambda: Usage(1, 1))
        with locked(file):
            entry.close(State.COMPLETED, "stop", 200, None)
            try:
                during = await ledger.open(
                    About(id="during", key="", model="m", dialect="openai", n=1, arrived=ledger.clock()), lambda: Usage(1, 1)
                )
            except Overloaded:
                assert not serve
            else:
                assert serve
                during.close(State.COMPLETED, "stop", 200, None)
            assert [row.state for row in rows_in(file).values() if row] == [State.OPEN]
        while ledger.spooled:
            await asyncio.sleep(0.005)
        after = await ledger.open(About(id="after", key="", model="m", dialect="openai", n=1, arrived=ledger.clock()), lambda: Usage(1, 1))
        after.close(State.COMPLETED, "stop", 200, None)

    async def whole() -> None:
        ledger = Ledger(LedgerConfig(file, serve))
        try:
            await asyncio.wait_for(scenario(ledger), PATIENCE_S)
        finally:
            ledger.close()

    asyncio.run(whole())
    rows = [row for row in rows_in(file).values() if row]
    assert sorted(row.id for row in rows) == sorted(["before", "after", *(["during"] if serve else [])])
    assert {row.state for row in rows} == {State.COMPLETED}
