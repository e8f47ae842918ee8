"""Rows that come, or go on, while the disk does not take what there is already."""

from __future__ import annotations

import asyncio
import errno
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest
from tests.ledger.test_ledger import Disk, by_id, disk, opened, run, until

from quintet.errors import Overloaded
from quintet.ledger import ledger as module
from quintet.ledger import writer
from quintet.ledger.ledger import Ledger
from quintet.ledger.rows import Row, State
from quintet.ledger.store import Store

__all__ = ["disk"]  # a fixture


@pytest.mark.fault("D06")
def test_a_log_of_a_lost_file_that_cannot_be_removed_is_tried_on(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a disk that is read only by then, say. The thread that writes ended with the error, and no row was written any more."""
    file, tries, remove, writable = tmp_path / "ledger.db", list[Path](), Path.unlink, threading.Event()

    def unlink(path: Path, missing_ok: bool = False) -> None:
        tries.append(path)
        if not writable.is_set():
            raise OSError(errno.EROFS, "Read-only file system")
        remove(path, missing_ok)

    async def scenario(ledger: Ledger) -> None:
        (await opened(ledger, "before")).close(State.COMPLETED, "stop", 200, None)
        file.unlink()
        monkeypatch.setattr(Path, "unlink", unlink)
        (await opened(ledger, "after")).close(State.COMPLETED, "stop", 200, None)
        await until(lambda: len(tries) > 2)
        writable.set()
        await until(lambda: not ledger.spooled)

    run(scenario, file, serve=True)
    assert by_id(file)["after"].state is State.COMPLETED


@pytest.mark.fault("D06")
def test_a_row_that_ends_while_its_beginning_cannot_be_written_is_written_as_it_ended(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed is written once more, and must not stand before what has come since."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    monkeypatch.setattr(module, "NOTE_S", 0.01)
    file = tmp_path / "ledger.db"

    async def scenario(ledger: Ledger) -> None:
        disk.open.clear()
        entry = await opened(ledger, "a")
        assert disk.calls == 1, "it is being written"
        entry.close(State.COMPLETED, "stop", 200, None)
        disk.error = "database or disk is full"
        disk.open.set()
        await until(lambda: ledger._writer.failing)
        disk.error = ""
        await until(lambda: not ledger.spooled)

    run(scenario, file, serve=True)
    assert {name: row.state for name, row in by_id(file).items()} == {"a": State.COMPLETED}


@pytest.mark.fault("D06")
def test_a_slow_disk_is_waited_for_as_long_as_it_may_take_and_no_longer(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often counts are noted meanwhile. A row that was written long ago is none that is waited for."""
    monkeypatch.setattr(module, "NOTE_S", 0.01)
    steady = 0.0

    async def noted() -> None:
        await asyncio.sleep(5 * module.NOTE_S)

    async def scenario(ledger: Ledger) -> None:
        nonlocal steady
        first = await opened(ledger, "first")
        steady += 2 * module.PATIENCE_S
        await noted()
        second = await opened(ledger, "second")
        for entry in (first, second):
            entry.close(State.COMPLETED, "stop", 200, None)
        disk.open.clear()
        third = asyncio.create_task(opened(ledger, "third"))
        await noted()
        steady += module.PATIENCE_S
        await noted()
        assert not third.done()
        steady += 1
        with pytest.raises(Overloaded):
            await third
        disk.open.set()

    run(scenario, tmp_path / "ledger.db", clock=lambda: steady)
    assert by_id(tmp_path / "ledger.db").keys() == {"first", "second"}


@pytest.mark.fault("D06")
def test_that_a_refused_requests_row_need_not_be_written_does_not_make_a_full_disk_one_with_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A real one takes what changes nothing: so it is tried with what does, and what is wrong with it is said once."""
    monkeypatch.setattr(writer, "RETRY_S", 0.01)
    write, probes = Store.write, list[int]()

    def fails() -> None:
        raise sqlite3.OperationalError("database or disk is full")

    def probe(_: Store) -> None:
        probes.append(1)
        fails()

    monkeypatch.setattr(Store, "write", lambda store, rows: fails() if any(rows.values()) else write(store, rows))
    monkeypatch.setattr(Store, "probe", probe)

    async def scenario(ledger: Ledger) -> None:
        with pytest.raises(Overloaded):
            await opened(ledger)
        await until(lambda: len(probes) > 3)
        assert [line.partition(",")[0] for line in caplog.messages] == [f"ledger: cannot write to {tmp_path / 'ledger.db'}"]

    run(scenario, tmp_path / "ledger.db")


@pytest.mark.fault("D06")
def test_rows_that_cannot_be_written_before_the_end_are_counted_in_the_log(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(ledger: Ledger) -> None:
        disk.error = "database or disk is full"
        await opened(ledger, "runs")
        (await opened(ledger, "ended")).close(State.COMPLETED, "stop", 200, None)

    run(scenario, tmp_path / "ledger.db", serve=True)
    assert caplog.messages[-1] == "ledger: 2 rows lost that could not be written"


@pytest.mark.fault("D06")
def test_a_clean_up_that_the_disk_does_not_take_is_tried_again_and_rows_are_written_meanwhile(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "TIDY_S", 0.01)
    tries = list[int]()

    def bury(_: Store) -> int:
        tries.append(1)
        raise sqlite3.OperationalError("database or disk is full")

    async def scenario(ledger: Ledger) -> None:
        monkeypatch.setattr(Store, "bury", bury)
        await until(lambda: len(tries) > 2)
        (await opened(ledger, "meanwhile")).close(State.COMPLETED, "stop", 200, None)

    run(scenario, tmp_path / "ledger.db")
    assert by_id(tmp_path / "ledger.db").keys() == {"meanwhile"}


def ledger_of_another(file: Path, *, killed: bool) -> None:
    """With a row of its second life: those of our first one have other numbers.

    Args:
        killed: the row is only in the log beside the file.
    """
    made = file.with_name("made.db")
    first = Store(made)
    first.begin(0.0)
    first.close()
    store = Store(made)
    number = store.begin(0.0)
    store.write({number: Row(number, file.name, "", "toy", "openai", 1, 0.0, state=State.COMPLETED)})
    if killed:
        for suffix in ("-wal", ""):
            shutil.copy(f"{made}{suffix}", f"{file}{suffix}")
    store.close()
    if not killed:
        shutil.copy(made, file)
    made.unlink()


@pytest.mark.fault("D06")
def test_a_ledger_that_is_put_in_the_place_of_a_lost_one_keeps_the_rows_that_only_its_log_has(tmp_path: Path, disk: Disk) -> None:
    """A process that was killed left it. The log is its own, whatever became of the lost one's."""
    file, its = tmp_path / "ledger.db", tmp_path / "its"

    async def scenario(ledger: Ledger) -> None:
        for suffix in ("-wal", ""):
            Path(f"{its}{suffix}").replace(f"{file}{suffix}")
        (await opened(ledger, "after")).close(State.COMPLETED, "stop", 200, None)
        await until(lambda: not ledger.spooled)

    ledger_of_another(its, killed=True)
    run(scenario, file, serve=True)
    assert by_id(file).keys() == {"its", "after"}


@pytest.mark.fault("D06")
def test_in_the_file_that_is_made_in_a_lost_ones_place_a_process_is_known_to_live_and_its_numbers_are_its_own(
    tmp_path: Path, disk: Disk
) -> None:
    """Else the next process took its rows for those of a dead one, or wrote over them."""
    file = tmp_path / "ledger.db"

    async def scenario(ledger: Ledger) -> None:
        entries = [await opened(ledger, "running")]
        file.unlink()
        entries.append(await opened(ledger, "after"))
        await until(lambda: not ledger.spooled)
        other = Store(file)
        number = other.begin(0.0)
        other.write({number: Row(number, "other", "", "toy", "openai", 1, 0.0, state=State.COMPLETED)})
        assert other.bury() == 0
        other.close()
        for entry in entries:
            entry.close(State.COMPLETED, "stop", 200, None)

    run(scenario, file, serve=True)
    assert {name: row.state for name, row in by_id(file).items()} == dict.fromkeys(("running", "after", "other"), State.COMPLETED)


@pytest.mark.fault("D06")
def test_however_often_a_file_is_lost_its_log_is_not_taken_for_that_of_the_one_in_its_place(tmp_path: Path, disk: Disk) -> None:
    file, others = tmp_path / "ledger.db", [tmp_path / "one", tmp_path / "two"]

    async def scenario(ledger: Ledger) -> None:
        for other in others:
            (await opened(ledger, "before")).close(State.COMPLETED, "stop", 200, None)
            await until(lambda: not ledger.spooled and by_id(file)["before"].state is State.COMPLETED)
            other.replace(file)
            (await opened(ledger, f"in {other.name}")).close(State.COMPLETED, "stop", 200, None)
            await until(lambda: not ledger.spooled)

    for other in others:
        ledger_of_another(other, killed=False)
    run(scenario, file, serve=True)
    assert by_id(file).keys() == {"two", "in two"}


@pytest.mark.fault("D06")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_lost_ledger_that_comes_back_is_gone_on_in(tmp_path: Path, disk: Disk, replaced: bool) -> None:
    """A volume that is mounted again, say. It has this life's own row, which had been taken for that of another server."""
    volume, away = tmp_path / "volume", tmp_path / "away"
    file = volume / "ledger.db"
    volume.mkdir()

    async def scenario(ledger: Ledger) -> None:
        running = await opened(ledger, "running")
        (await opened(ledger, "before")).close(State.COMPLETED, "stop", 200, None)
        await until(lambda: by_id(file)["before"].state is State.COMPLETED)
        volume.rename(away)
        if replaced:
            volume.mkdir()
        meanwhile = await opened(ledger, "meanwhile")
        await until(lambda: not ledger.spooled and "meanwhile" in by_id(file) if replaced else "no folder" in ledger._writer._failing)
        if replaced:
            shutil.rmtree(volume)
        away.rename(volume)
        for entry in (await opened(ledger, "after"), running, meanwhile):
            entry.close(State.COMPLETED, "stop", 200, None)
        await until(lambda: not ledger.spooled)

    run(scenario, file, serve=True)
    assert {name: row.state for name, row in by_id(file).items()} == dict.fromkeys(
        ("running", "before", "meanwhile", "after"), State.COMPLETED
    )
