"""The one thread at the database: each piece of work wholly or not at all, and those that come together synchronised once."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.ledger.disk import Disk, needs_disk

from quintet.batch import Batch, File, NewBatch, Purpose
from quintet.batches.desk import Desk
from quintet.batches.folder import BatchFolderError, Folder
from quintet.batches.schema import connect
from quintet.batches.store import Store
from quintet.errors import BadRequest, NotFound


def file(number: int) -> File:
    return File(f"file-{number}", "", "x", Purpose.BATCH, 1, number, None)


def add(one: File, store: Store) -> None:
    store.add_file(one)


def test_where_no_thread_can_be_started_the_folder_cannot_be_used_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(BatchFolderError, match="can't start new thread"):
            Desk(Folder(tmp_path))
    Desk(Folder(tmp_path)).close()


def test_work_that_fails_leaves_nothing_and_disturbs_nobody(tmp_path: Path) -> None:
    desk = Desk(Folder(tmp_path))

    def half(store: Store) -> None:
        store.add_file(file(99))
        raise ValueError("no")

    async def go() -> None:
        work = [desk.do(half) if number % 3 == 0 else desk.do(partial(add, file(number))) for number in range(30)]
        told = await asyncio.gather(*work, return_exceptions=True)
        assert [isinstance(one, ValueError) for one in told] == [number % 3 == 0 for number in range(30)]
        assert len(await desk.do(Store.known_files)) == 20
        with pytest.raises(NotFound):
            await desk.do(lambda store: store.file("file-99", "", 0))

    asyncio.run(go())
    desk.close()


def test_what_a_disk_does_not_take_is_told_to_all_and_the_next_work_is_done(tmp_path: Path) -> None:
    desk = Desk(Folder(tmp_path))
    pages = desk._connection.execute("PRAGMA page_count").fetchone()[0]

    async def go() -> None:
        await desk.do(lambda store: store.add_file(file(1)))
        desk._connection.execute(f"PRAGMA max_page_count = {pages}")  # as if the disk were full from here on
        long = [File(f"file-{number}", "", "x" * 4000, Purpose.BATCH, 1, number, None) for number in range(2, 30)]
        told = await asyncio.gather(*(desk.do(partial(add, one)) for one in long), return_exceptions=True)
        assert any(isinstance(one, sqlite3.Error) for one in told)
        desk._connection.execute("PRAGMA max_page_count = 100000")
        await desk.do(lambda store: store.add_file(file(50)))
        kept = {"file-1", "file-50"} | {one.id for one, error in zip(long, told, strict=True) if error is None}
        assert await desk.do(Store.known_files) == kept

    asyncio.run(go())
    desk.close()


@pytest.mark.parametrize("name", ["alien", "newer", "open"])
def test_a_database_that_is_not_ours_alone_is_refused(tmp_path: Path, name: str) -> None:
    folder = Folder(tmp_path)
    if name == "open":
        connect(folder.database).close()
        folder.database.chmod(0o644)
    else:
        with sqlite3.connect(folder.database) as made:
            made.execute("CREATE TABLE other (x)" if name == "alien" else "PRAGMA application_id = 1363297096")
            made.execute("PRAGMA user_version = 9")
        made.close()
        folder.database.chmod(0o600)
    with pytest.raises(BatchFolderError):
        Desk(folder)


UNSYNCHRONISED = """
import errno, sys
from pathlib import Path
from tests.ledger.disk import Disk
from quintet.batches.folder import Folder
folder = Folder(Path(sys.argv[1]))
draft = folder.draft()
draft.write(b"answers")
Disk(folder.path.parent, folder.path.name).fails(errno.EIO, syncs=True)
try:
    draft.keep("file-1")
except OSError as error:
    print(error.strerror, folder.content("file-1").exists())
"""


@needs_disk
@pytest.mark.fault("J03")
def test_a_file_that_could_not_be_synchronised_is_not_there(tmp_path: Path) -> None:
    """Else a batch would be told to have ended whose answers are lost with the machine's power."""
    environment = {**os.environ, **Disk(tmp_path, "kept").environment()}
    command = [sys.executable, "-c", UNSYNCHRONISED, str(tmp_path / "kept")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "Input/output error False\n", done.stderr


@pytest.mark.fault("J03")
def test_what_is_committed_is_synchronised(tmp_path: Path) -> None:
    connection = connect(Folder(tmp_path).database)
    told = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    connection.close()
    assert told == ["wal", 2]


def test_a_batch_whose_files_are_being_written_is_not_cancelled_any_more_and_the_refusal_does_not_say_that_it_has_ended(
    tmp_path: Path,
) -> None:
    async def go() -> None:
        desk = Desk(Folder(tmp_path))
        asked = NewBatch("file-1", "/v1/completions", "24h", 60)
        await desk.do(partial(add, file(1)))
        await desk.do(lambda store: store.add_batch(Batch("batch_1", "", "openai", asked, 0, 60), 1))
        await desk.do(lambda store: store.accept("batch_1", [], "", 1))
        assert await desk.do(lambda store: store.complete("batch_1", 2))
        with pytest.raises(BadRequest, match="of which lines are left to compute; this one's status is finalizing"):
            await desk.do(lambda store: store.cancel("batch_1", "", 3))
        await asyncio.to_thread(desk.close)

    asyncio.run(go())
