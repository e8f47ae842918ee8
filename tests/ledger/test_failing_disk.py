"""Rows that come, or go on, while the disk does not take what there is already."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from tests.ledger.test_ledger import Disk, by_id, disk, opened, run, until

from quintet.ledger import ledger as module
from quintet.ledger.ledger import Ledger
from quintet.ledger.rows import State

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
