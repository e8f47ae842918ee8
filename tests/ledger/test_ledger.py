"""The event loop's side: durable before work, noted meanwhile, closed; one commit for many; a disk that is full, broken or slow."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.ledger.files import rows_in

from quintet.config import LedgerConfig
from quintet.errors import Overloaded
from quintet.events import Usage
from quintet.ledger import ledger as module
from quintet.ledger import writer
from quintet.ledger.ledger import About, Entry, Ledger
from quintet.ledger.report import Query, usage
from quintet.ledger.rows import Row, State
from quintet.ledger.store import Store
from quintet.ledger.writer import Rows

PATIENCE_S = 60
USED = Usage(3, 4)


class Disk:
    """Stands before the store of every ledger made within ``disk``."""

    def __init__(self) -> None:
        self.error: str = ""
        self.open = threading.Event()
        self.open.set()
        self.calls = 0
        self.commits: list[int] = []

    def __call__(self, store: Store, rows: Rows, write: Callable[[Store, Rows], None]) -> None:
        self.calls += 1
        self.open.wait()
        if self.error:
            raise sqlite3.OperationalError(self.error)
        write(store, rows)
        self.commits.append(len(rows))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made, write, probe = Disk(), Store.write, Store.probe
    monkeypatch.setattr(Store, "write", lambda store, rows: made(store, rows, write))
    monkeypatch.setattr(Store, "probe", lambda store: made(store, {}, lambda store, _: probe(store)))
    monkeypatch.setattr(writer, "RETRY_S", 0.01)
    return made


@contextmanager
def kept(file: Path, *, serve: bool = False, keep: float = 0.0, **clocks: Callable[[], float]) -> Iterator[Ledger]:
    ledger = Ledger(LedgerConfig(file, serve, keep), **clocks)
    try:
        yield ledger
    finally:
        ledger.close()


def run(
    scenario: Callable[[Ledger], Awaitable[None]], file: Path, *, serve: bool = False, keep: float = 0.0, **clocks: Callable[[], float]
) -> None:
    async def whole() -> None:
        with kept(file, serve=serve, keep=keep, **clocks) as ledger:
            await asyncio.wait_for(scenario(ledger), PATIENCE_S)

    asyncio.run(whole())


async def opened(ledger: Ledger, name: str = "a", used: Usage = USED, key: str = "") -> Entry:
    return await ledger.open(About(id=name, key=key, model="toy", dialect="openai", n=1, arrived=ledger.clock()), lambda: used)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def by_id(file: Path) -> dict[str, Row]:
    return {row.id: row for row in rows_in(file).values() if row is not None}


def test_a_row_is_on_the_disk_before_work_begins_and_closed_with_what_was_used(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"

    async def scenario(ledger: Ledger) -> None:
        entry = await opened(ledger)
        assert by_id(file)["a"][6:] == (by_id(file)["a"].arrived, None, None, 0, 0, 0, 0, State.OPEN, "", 0)
        assert abs(by_id(file)["a"].arrived - time.time()) < PATIENCE_S
        entry.close(State.COMPLETED, "stop", 200, 0.25)
        await until(lambda: by_id(file)["a"].state is not State.OPEN)
        row = by_id(file)["a"]
        assert (row.prompt, row.completion, row.first, row.state, row.finish, row.status) == (3, 4, 0.25, State.COMPLETED, "stop", 200)
        assert row.total is not None
        await until(lambda: ledger.stats.written == 1)

    run(scenario, file)


def test_who_comes_while_the_disk_writes_is_written_together(tmp_path: Path, disk: Disk) -> None:
    async def scenario(ledger: Ledger) -> None:
        disk.open.clear()
        first = asyncio.create_task(opened(ledger, "first"))
        await until(lambda: disk.calls == 1)
        others = [asyncio.create_task(opened(ledger, str(number))) for number in range(32)]
        await asyncio.sleep(0)
        disk.open.set()
        for entry in await asyncio.gather(first, *others):
            entry.close(State.COMPLETED, "stop", 200, None)
        assert disk.commits == [1, 32]

    run(scenario, tmp_path / "ledger.db")
    assert disk.commits == [1, 32, 33]


@pytest.mark.fault("J02")
def test_of_a_request_that_runs_the_counts_are_noted_and_a_process_that_is_gone_leaves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NOTE_S", 0.01)
    file = tmp_path / "ledger.db"

    async def scenario(ledger: Ledger) -> None:
        used = Usage(7, 1)
        await ledger.open(About(id="a", key="k", model="toy", dialect="openai", n=1, arrived=ledger.clock()), lambda: used)
        await until(lambda: by_id(file)["a"].completion == 1)
        used = Usage(7, 20, cached_tokens=5, reasoning_tokens=2)
        await until(lambda: by_id(file)["a"].completion == 20)

    run(scenario, file)
    row = by_id(file)["a"]
    assert (row.prompt, row.completion, row.cached, row.reasoning, row.state) == (7, 20, 5, 2, State.INCOMPLETE)


def test_a_withdrawn_request_has_no_row(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"

    async def scenario(ledger: Ledger) -> None:
        entry = await opened(ledger)
        assert set(by_id(file)) == {"a"}
        await entry.withdraw()
        assert by_id(file) == {}

    run(scenario, file)
    assert by_id(file) == {}


@pytest.mark.fault("D06")
def test_a_full_disk_refuses_requests_before_they_cost_anything_and_ends_none_that_run(tmp_path: Path, disk: Disk) -> None:
    file = tmp_path / "ledger.db"

    async def scenario(ledger: Ledger) -> None:
        running = await opened(ledger, "running")
        disk.error = "database or disk is full"
        for number in range(3):
            with pytest.raises(Overloaded, match="cannot keep account"):
                await opened(ledger, f"refused {number}")
        running.close(State.COMPLETED, "stop", 200, None)
        assert (ledger.stats.refused, ledger.stats.spooled, ledger.spooled) == (3, 0, 2)
        disk.error = ""
        await until(lambda: not ledger.spooled)
        entry = await opened(ledger, "after")
        entry.close(State.FAILED, "error", 500, None)

    run(scenario, file)
    assert {name: row.state for name, row in by_id(file).items()} == {"running": State.COMPLETED, "after": State.FAILED}


@pytest.mark.fault("D06")
@pytest.mark.parametrize("error", ["database or disk is full", "disk I/O error", "database is locked"])
def test_where_it_may_serve_rows_wait_in_memory_up_to_a_bound_and_are_all_written_when_there_is_room(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    monkeypatch.setattr(module, "MOST_SPOOLED", 20)
    file = tmp_path / "ledger.db"

    async def scenario(ledger: Ledger) -> None:
        disk.error = error
        entries = [await opened(ledger, str(number)) for number in range(20)]
        assert ledger.spooled == 20
        with pytest.raises(Overloaded):
            for number in range(20, 30):
                await opened(ledger, str(number))
        for entry in entries:
            entry.close(State.COMPLETED, "stop", 200, None)
        assert (ledger.stats.spooled, ledger.stats.refused) == (21, 1)
        disk.error = ""
        await until(lambda: not ledger.spooled)
        assert {name for name, row in by_id(file).items() if row.state is State.COMPLETED} == {str(number) for number in range(20)}

    run(scenario, file, serve=True)
    assert len(by_id(file)) == 21


def delete(file: Path) -> None:
    for each in file.parent.glob(f"{file.name}*"):
        each.unlink()


def move(file: Path) -> None:
    file.rename(file.with_name("old.db"))


@pytest.mark.fault("D06")
@pytest.mark.parametrize("serve", [False, True])
@pytest.mark.parametrize("lose", [Path.unlink, delete, move])
def test_a_file_that_is_lost_while_it_is_open_is_noticed_and_the_next_has_all_that_runs_and_comes(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture, lose: Callable[[Path], None], serve: bool
) -> None:
    file = tmp_path / "ledger.db"

    async def scenario(ledger: Ledger) -> None:
        first = await opened(ledger, "ended before")
        first.close(State.COMPLETED, "stop", 200, None)
        running = await opened(ledger, "running")
        lose(file)
        if serve:
            (await opened(ledger, "first after")).close(State.COMPLETED, "stop", 200, None)
        else:
            with pytest.raises(Overloaded, match="cannot keep account"):
                await opened(ledger, "first after")
        assert (ledger.stats.lost, ledger.stats.spooled, ledger.stats.refused) == (1, serve, not serve)
        await until(lambda: not ledger.spooled)
        assert by_id(file)["running"].state is State.OPEN, "known there before it ends: its process may be killed"
        running.close(State.COMPLETED, "stop", 200, None)
        (await opened(ledger, "next")).close(State.COMPLETED, "stop", 200, None)
        assert ledger.stats.lost == 1

    run(scenario, file, serve=serve)
    assert {row.state for row in by_id(file).values()} == {State.COMPLETED}
    assert by_id(file).keys() == {"running", "next", *(["first after"] if serve else [])}
    assert sum("was deleted or replaced while it was open" in line for line in caplog.messages) == 1
    with kept(file) as after:
        assert sum(tokens for _, tokens in after.spent("")) == 7 * len(by_id(file)), (
            "it is a whole ledger, and the next process has numbers of its own"
        )


@pytest.mark.fault("D06")
def test_what_is_put_in_its_place_and_is_no_ledger_is_left_alone_and_the_rows_wait(tmp_path: Path, disk: Disk) -> None:
    file, foreign = tmp_path / "ledger.db", tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE mine (x)")
    foreign.chmod(0o600)
    before = foreign.read_bytes()

    async def scenario(ledger: Ledger) -> None:
        foreign.replace(file)
        (await opened(ledger, "a")).close(State.COMPLETED, "stop", 200, None)
        tries = disk.calls
        await until(lambda: ledger.stats.lost == 1 and "another program's" in ledger._writer._failing)
        assert (disk.calls, ledger.spooled, file.read_bytes()) == (tries, 1, before)
        file.unlink()
        await until(lambda: not ledger.spooled)

    run(scenario, file, serve=True)
    assert by_id(file).keys() == {"a"}


@pytest.mark.fault("D06")
def test_a_file_that_is_lost_while_nobody_asks_is_noticed_too(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "TIDY_S", 0.05)
    file = tmp_path / "ledger.db"

    async def scenario(ledger: Ledger) -> None:
        delete(file)
        await until(lambda: ledger.stats.lost == 1 and file.exists() and not ledger._writer.failing)

    run(scenario, file)


@pytest.mark.fault("D06")
@pytest.mark.parametrize("serve", [False, True])
def test_a_disk_that_does_not_answer_counts_as_full_after_a_while(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, serve: bool
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    monkeypatch.setattr(module, "NOTE_S", 0.01)
    file = tmp_path / "ledger.db"

    async def scenario(ledger: Ledger) -> None:
        disk.open.clear()
        for name in ("a", "b"):
            if serve:
                (await opened(ledger, name)).close(State.COMPLETED, "stop", 200, None)
            else:
                with pytest.raises(Overloaded):
                    await opened(ledger, name)
        disk.open.set()
        await until(lambda: not ledger.spooled)

    run(scenario, file, serve=serve)
    assert {name: row.state for name, row in by_id(file).items()} == ({"a": State.COMPLETED, "b": State.COMPLETED} if serve else {})


@pytest.mark.fault("D06")
def test_only_the_first_waits_for_a_disk_that_does_not_answer(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes after it hears at once, until the disk has answered."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    monkeypatch.setattr(module, "NOTE_S", 0.01)
    file = tmp_path / "ledger.db"

    async def scenario(ledger: Ledger) -> None:
        disk.open.clear()
        with pytest.raises(Overloaded):
            await opened(ledger, "first")
        monkeypatch.setattr(module, "PATIENCE_S", 1e9)
        await asyncio.sleep(5 * module.NOTE_S)  # counts are noted meanwhile, which is no answer
        try:
            async with asyncio.timeout(PATIENCE_S):
                for name in ("second", "third"):
                    with pytest.raises(Overloaded):
                        await opened(ledger, name)
        finally:
            disk.open.set()
        await until(lambda: not ledger.spooled)
        (await opened(ledger, "after")).close(State.COMPLETED, "stop", 200, None)

    run(scenario, file)
    assert by_id(file).keys() == {"after"}


def test_a_request_whose_client_leaves_while_its_row_is_written_has_none(tmp_path: Path, disk: Disk) -> None:
    file = tmp_path / "ledger.db"

    async def scenario(ledger: Ledger) -> None:
        disk.open.clear()
        task = asyncio.create_task(opened(ledger))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        disk.open.set()

    run(scenario, file)
    assert by_id(file) == {}


@pytest.mark.fault("D09")
def test_durations_do_not_follow_a_clock_that_jumps_and_times_do(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    wall, steady = 1_000_000.0, 50.0

    async def scenario(ledger: Ledger) -> None:
        nonlocal wall, steady
        for name, jump in (("back", -3600.0), ("forward", 90_000.0), ("frozen", 0.0)):
            entry = await ledger.open(
                About(id=name, key="k", model="toy", dialect="openai", n=1, arrived=steady - 2.0), lambda: Usage(1, 1)
            )
            wall += jump
            steady += 10.0
            entry.close(State.COMPLETED, "stop", 200, 3.0)
        await until(lambda: ledger.stats.written == 3)

    run(scenario, file, now=lambda: wall, clock=lambda: steady)
    rows = by_id(file)
    assert {name: row.arrived for name, row in rows.items()} == {"back": 999_998.0, "forward": 996_398.0, "frozen": 1_086_398.0}
    assert {(row.first, row.total) for row in rows.values()} == {(3.0, 12.0)}
    assert len(rows) == 3, "numbers do not come from clocks"


@pytest.mark.fault("J06")
def test_rows_of_days_that_are_too_old_are_summed_up_and_a_clock_over_midnight_changes_no_sum(tmp_path: Path) -> None:
    file, day = tmp_path / "ledger.db", 86_400.0
    wall = 100 * day + 80_000

    async def scenario(ledger: Ledger) -> None:
        nonlocal wall
        for number in range(300):
            (await opened(ledger, str(number), key="aaaaaaaa")).close(State.COMPLETED, "stop", 200, None)
            wall += 1000 if number % 7 else -3000  # over midnight, back and again

    run(scenario, file, now=lambda: wall)
    before = usage(file, Query(("day", "key")))
    assert len(before) > 2
    last = max(row.arrived for row in rows_in(file).values() if row)
    young = {number for number, row in rows_in(file).items() if row and row.arrived >= last // day * day}

    async def tidied(_: Ledger) -> None:
        await until(lambda: not rows_in(file) or min(row.arrived for row in rows_in(file).values() if row) >= last // day * day)

    run(tidied, file, keep=90 * day, now=lambda: last + 90 * day)
    assert rows_in(file).keys() == young, "all of the last day, which has not ended so long ago"
    assert len(young) < 300
    assert usage(file, Query(("day", "key"))) == before
