"""The one thread at the database: each piece of work wholly or not at all, and those that come together synchronised once."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.disk import Disk, needs_disk

from quintet.batch import Batch, File, NewBatch, Purpose, Status, Tokens
from quintet.batches.desk import Desk
from quintet.batches.folder import BatchFolderError, Folder
from quintet.batches.lines import Line
from quintet.batches.schema import connect
from quintet.batches.store import Store
from quintet.errors import BadRequest, NotFound


def file(number: int) -> File:
    return File(id=f"file-{number}", owner="", name="x", purpose=Purpose.BATCH, size=1, created=number, expires=None)


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
        long = [
            File(id=f"file-{number}", owner="", name="x" * 4000, purpose=Purpose.BATCH, size=1, created=number, expires=None)
            for number in range(2, 30)
        ]
        told = await asyncio.gather(*(desk.do(partial(add, one)) for one in long), return_exceptions=True)
        assert any(isinstance(one, sqlite3.Error) for one in told)
        desk._connection.execute("PRAGMA max_page_count = 100000")
        await desk.do(lambda store: store.add_file(file(50)))
        kept = {"file-1", "file-50"} | {one.id for one, error in zip(long, told, strict=True) if error is None}
        assert await desk.do(Store.known_files) == kept

    asyncio.run(go())
    desk.close()


class Flaky(sqlite3.Connection):
    """What it writes may not get to the disk."""

    fails = False
    broken = ("COMMIT",)

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if self.fails and statement in self.broken:
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(statement, *values)


def test_where_not_even_undoing_works_all_are_told_and_the_next_work_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread had ended with the error, and whoever asked for anything from then on waited for ever."""
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Flaky))
    monkeypatch.setattr(Flaky, "broken", ("COMMIT", "ROLLBACK"))
    desk = Desk(Folder(tmp_path))

    async def go() -> None:
        monkeypatch.setattr(Flaky, "fails", True)
        for number in (1, 2):
            with pytest.raises(sqlite3.Error):
                async with asyncio.timeout(20):
                    await desk.do(partial(add, file(number)))
        monkeypatch.setattr(Flaky, "fails", False)
        with pytest.raises(sqlite3.Error):
            await desk.do(partial(add, file(3)))  # what was not undone is undone before the next
        await desk.do(partial(add, file(4)))
        assert await desk.do(Store.known_files) == {"file-4"}

    asyncio.run(go())
    desk.close()


@pytest.mark.fault("J03")
def test_nobody_is_told_of_work_before_it_is_on_the_disk_and_what_is_not_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Flaky))
    desk = Desk(Folder(tmp_path))

    async def go() -> None:
        await desk.do(partial(add, file(1)))
        monkeypatch.setattr(Flaky, "fails", True)
        told = await asyncio.gather(*(desk.do(partial(add, file(number))) for number in (2, 3)), return_exceptions=True)
        assert [str(error) for error in told] == ["disk I/O error"] * 2
        monkeypatch.setattr(Flaky, "fails", False)
        await desk.do(partial(add, file(4)))
        assert await desk.do(Store.known_files) == {"file-1", "file-4"}

    asyncio.run(go())
    desk.close()


def test_who_asked_and_is_gone_with_its_loop_keeps_nobody_from_being_told(tmp_path: Path) -> None:
    desk, goes_on = Desk(Folder(tmp_path)), threading.Event()

    async def leaves() -> None:
        asking = asyncio.create_task(desk.do(lambda _: goes_on.wait(60)))
        await asyncio.sleep(0)
        asking.cancel()

    asyncio.run(leaves())
    goes_on.set()
    assert asyncio.run(asyncio.wait_for(desk.do(Store.known_files), 60)) == set()
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
def test_a_files_name_is_synchronised_once_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, synced = Folder(tmp_path / "kept"), list[tuple[bool, bool]]()
    draft, there = folder.draft(), folder.content("file-1")
    draft.write(b"answers")
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((stat.S_ISDIR(os.fstat(fd).st_mode), there.exists())))
    draft.keep("file-1")
    assert synced == [(False, False), (True, True)]


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
        asked = NewBatch(input_file="file-1", endpoint="/v1/completions", window="24h", window_s=60)
        await desk.do(partial(add, file(1)))
        await desk.do(lambda store: store.add_batch(Batch(id="batch_1", owner="", dialect="openai", asked=asked, created=0, expires=60), 1))
        await desk.do(lambda store: store.accept("batch_1", [], "", 1))
        assert await desk.do(lambda store: store.complete("batch_1", 2))
        with pytest.raises(BadRequest, match="of which lines are left to compute; this one's status is finalizing"):
            await desk.do(lambda store: store.cancel("batch_1", "", 3))
        await asyncio.to_thread(desk.close)

    asyncio.run(go())


def test_a_batch_that_is_cancelled_while_its_file_is_read_gets_no_lines(tmp_path: Path) -> None:
    async def go() -> None:
        desk = Desk(Folder(tmp_path))
        asked = NewBatch(input_file="file-1", endpoint="/v1/completions", window="24h", window_s=60)
        await desk.do(partial(add, file(1)))
        await desk.do(lambda store: store.add_batch(Batch(id="batch_1", owner="", dialect="openai", asked=asked, created=0, expires=60), 1))
        assert (await desk.do(lambda store: store.cancel("batch_1", "", 1))).status is Status.CANCELLING
        await desk.do(lambda store: store.accept("batch_1", [Line(1, 0, 1, "a", 0)], "m", 2))
        batch = await desk.do(lambda store: store.batch("batch_1", ""))
        assert (batch.status, batch.total, batch.model) == (Status.CANCELLING, 0, "")
        assert await desk.do(lambda store: store.pending("batch_1", 0, 9)) == []
        await asyncio.to_thread(desk.close)

    asyncio.run(go())


@pytest.mark.fault("J03")
def test_what_comes_of_a_line_again_changes_nothing(tmp_path: Path) -> None:
    """Of one whose writer was not told that it was written, say."""

    async def go() -> None:
        desk = Desk(Folder(tmp_path))
        asked = NewBatch(input_file="file-1", endpoint="/v1/completions", window="24h", window_s=60)
        await desk.do(partial(add, file(1)))
        await desk.do(lambda store: store.add_batch(Batch(id="batch_1", owner="", dialect="openai", asked=asked, created=0, expires=60), 1))
        await desk.do(lambda store: store.accept("batch_1", [Line(1, 0, 1, "a", 0)], "", 1))
        for body, ok in ((b"first", True), (b"again", True), (b"given up", False)):
            await desk.do(partial(Store.record, id_="batch_1", line=1, body=body, tokens=Tokens(1, 2, 0), ok=ok))
        batch = await desk.do(lambda store: store.batch("batch_1", ""))
        assert (batch.completed, batch.failed, batch.tokens) == (1, 0, Tokens(1, 2, 0))
        written = await desk.do(lambda store: [[*store.results("batch_1", 0, ok=ok)] for ok in (True, False)])
        assert written == [[(1, b"first")], []]
        await asyncio.to_thread(desk.close)

    asyncio.run(go())
