"""The folder of files and batches: locked, lost, of another server, on a disk that hangs or fails."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.server.kept import GOOD, World, jsonl, line, play, world

from quintet.batches import runner, schema
from quintet.batches.folder import Folder
from quintet.server import kept


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "POLL_S", 0.02)
    monkeypatch.setattr(runner, "RETRY_S", 0.02)


@pytest.mark.fault("J05")
def test_a_folder_whose_lock_cannot_be_had_is_a_503_and_used_once_it_can(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        lock = one.folder / "lock"
        lock.mkdir(parents=True)
        one.folder.chmod(0o700)
        for refused in (await one.upload(b"x"), await one.get("/v1/files")):
            assert refused.status == 503, refused.body
            assert refused.header("retry-after")
        lock.rmdir()
        assert (await one.upload(b"x")).status == 200

    play(tmp_path, scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.fault("J05")
@pytest.mark.parametrize(("name", "number"), [("fcntl.flock", errno.ENOLCK), ("quintet.batches.folder.Folder._identity", errno.EIO)])
def test_what_could_not_be_opened_is_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Each try left a descriptor, or a lock that every later one took for another server's."""

    async def scenario(one: World) -> None:
        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        def mine() -> int:
            return sum(link.resolve().is_relative_to(tmp_path) for link in [*Path("/proc/self/fd").iterdir()])

        with monkeypatch.context() as broken:
            broken.setattr(name, fail)
            assert [(await one.get("/v1/files")).status for _ in range(3)] == [503] * 3
            assert mine() == 0
        assert (await one.get("/v1/files")).status == 200

    play(tmp_path, scenario)


def test_a_folder_that_another_server_has_is_not_touched(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        other = Folder(one.folder)
        assert other.take()
        assert (await one.get("/v1/files")).status == 503
        other.leave()
        assert (await one.get("/v1/files")).status == 200

    play(tmp_path, scenario)


def move_away(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


@pytest.mark.parametrize("lose", [shutil.rmtree, move_away, lambda folder: (folder / "batches.sqlite").unlink()])
def test_a_folder_that_is_deleted_or_moved_away_under_a_server_is_begun_anew(
    tmp_path: Path, lose: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(one: World) -> None:
        lost = await one.begin(*(line(f"{number}", max_tokens=500) for number in range(100)))
        lose(one.folder)
        assert (await one.post("/v1/batches", {**GOOD, "input_file_id": lost["input_file_id"]})).status == 503, "nothing is taken on"
        async with asyncio.timeout(10):
            while (await one.get("/v1/files")).status == 503:
                await asyncio.sleep(0.01)
        assert (await one.get(f"/v1/batches/{lost['id']}")).status == 404
        assert (await one.ended(await one.begin(line("a"))))["request_counts"]["completed"] == 1

    play(tmp_path, scenario)
    assert "kept was deleted or replaced while it was open" in caplog.text
    assert "Traceback" not in caplog.text


def test_of_a_folder_whose_files_are_deleted_under_a_server_the_rest_stays(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        done = await one.ended(await one.begin(line("a")))
        shutil.rmtree(one.folder / "files")
        async with asyncio.timeout(10):
            while (await one.upload(b"x")).status == 503:
                await asyncio.sleep(0.01)
        assert (await one.get(f"/v1/batches/{done['id']}")).json() == done
        assert (await one.get(f"/v1/files/{done['output_file_id']}/content")).status == 404

    play(tmp_path, scenario)


def test_a_disk_that_hangs_holds_up_no_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one: World) -> None:
        assert (await one.get("/v1/files")).status == 200
        hangs, answers = threading.Event(), threading.Event()

        def lost(_: Folder) -> bool:
            hangs.set()
            return not answers.wait(60)

        monkeypatch.setattr(Folder, "lost", lost)
        listed = asyncio.create_task(one.get("/v1/files"))
        assert await asyncio.to_thread(hangs.wait, 60)
        assert (await one.post("/v1/completions", {"prompt": "x", "max_tokens": 1})).status == 200
        assert not listed.done()
        answers.set()
        assert (await listed).status == 200

    play(tmp_path, scenario)


def test_a_disk_that_hangs_under_a_batch_holds_up_no_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one: World) -> None:
        hangs, answers, in_time = threading.Event(), threading.Event(), list[bool]()
        look = os.statvfs

        def hang(path: Path) -> os.statvfs_result:
            if not hangs.is_set():
                hangs.set()
                in_time.append(answers.wait(10))
            return look(path)

        file = (await one.upload(jsonl(line("a")))).json()["id"]
        monkeypatch.setattr(os, "statvfs", hang)
        batch = (await one.post("/v1/batches", {**GOOD, "input_file_id": file})).json()
        assert await asyncio.to_thread(hangs.wait, 60)
        assert (await one.post("/v1/completions", {"prompt": "x", "max_tokens": 1})).status == 200
        answers.set()
        assert (await one.ended(batch))["status"] == "completed" and in_time == [True]

    play(tmp_path, scenario)


def test_a_folder_that_cannot_be_reached_keeps_no_completion_from_being_answered(tmp_path: Path) -> None:
    async def scenario(one: World) -> None:
        assert (await one.post("/v1/completions", {"prompt": "x", "max_tokens": 1})).status == 200
        assert (await one.get("/v1/files")).status == 503

    play(tmp_path / ("n" * 300), scenario)  # a look at such a name fails as one without permission does, but for root too


@contextmanager
def locked(folder: Path) -> Iterator[Callable[[], None]]:
    """Somebody else, a backup say, has the database for itself; gives what ends that."""
    database = sqlite3.connect(folder / "batches.sqlite", isolation_level=None)
    try:
        database.execute("BEGIN IMMEDIATE")
        yield database.rollback
    finally:
        database.close()


async def until(there: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not there():
            await asyncio.sleep(0.01)


def test_a_batch_goes_on_once_a_database_that_was_locked_at_the_start_is_free_though_nobody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schema, "BUSY_S", 0.01)
    monkeypatch.setattr(kept, "AGAIN_S", 0.01)
    tries, connect = list[Path](), schema.connect

    def counted(file: Path) -> sqlite3.Connection:
        tries.append(file)
        return connect(file)

    def status() -> str:
        with sqlite3.connect(tmp_path / "kept" / "batches.sqlite") as database:
            (found,) = database.execute("SELECT status FROM batches").fetchone()
        database.close()
        return str(found)

    async def go() -> None:
        async with world(tmp_path) as one:
            await one.begin(*(line(f"{number}", max_tokens=300) for number in range(100)))
        assert status() in ("validating", "in_progress")
        monkeypatch.setattr("quintet.batches.desk.connect", counted)
        with locked(one.folder) as free:
            async with world(tmp_path):
                await until(lambda: len(tries) > 3)
                free()
                await until(lambda: status() == "completed")

    asyncio.run(go())
    assert caplog.text.count("database is locked") == 1, "it is said once"
    assert "kept is open now" in caplog.text


def test_a_database_that_is_locked_at_the_start_holds_up_nobody_but_who_asks_for_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens, free, opened = threading.Event(), threading.Event(), list[Path]()
    connect = schema.connect

    def hangs(file: Path) -> sqlite3.Connection:
        opened.append(file)
        opens.set()
        assert free.wait(60)
        return connect(file)

    async def scenario(one: World) -> None:
        assert await asyncio.to_thread(opens.wait, 60)
        asked = [asyncio.create_task(one.get("/v1/files")) for _ in range(3)]
        assert (await one.post("/v1/completions", {"prompt": "x", "max_tokens": 1})).status == 200
        assert not any(task.done() for task in asked)
        free.set()
        assert [(await task).status for task in asked] == [200] * 3
        assert len(opened) == 1, "all wait for the same"

    Folder(tmp_path / "kept")
    monkeypatch.setattr("quintet.batches.desk.connect", hangs)
    play(tmp_path, scenario)


@pytest.mark.parametrize("tries", [1, 3])
def test_a_server_whose_folder_is_locked_refuses_files_and_ends_with_nothing_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    monkeypatch.setattr(schema, "BUSY_S", 0.01)
    monkeypatch.setattr(kept, "AGAIN_S", 3600.0 if tries == 1 else 0.01)

    async def go() -> None:
        async with world(tmp_path) as one:
            assert (await one.get("/v1/files")).status == 200
        before = asyncio.all_tasks()
        with locked(one.folder):
            async with world(tmp_path) as one:
                for _ in range(tries):
                    refused = await one.get("/v1/files")
                    assert (refused.status, bool(refused.header("retry-after"))) == (503, True), refused.body
            await until(lambda: asyncio.all_tasks() <= before)
        assert Folder(one.folder).take(), "nobody has it any more"

    asyncio.run(go())


def test_a_folder_that_another_server_had_at_the_start_is_left_to_it_until_somebody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That server may only be restarted, and this one may not have the models of its batches."""
    monkeypatch.setattr(kept, "AGAIN_S", 0.01)
    other = Folder(tmp_path / "kept")
    assert other.take()

    async def scenario(one: World) -> None:
        await until(lambda: "in use by another server" in caplog.text)
        other.leave()
        await asyncio.sleep(0.2)
        assert other.take()
        other.leave()
        assert (await one.get("/v1/files")).status == 200

    play(tmp_path, scenario)


def test_where_no_thread_can_be_started_a_folder_is_a_503_and_opened_once_one_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("opening"):
            raise RuntimeError("can't start new thread")
        start(thread)

    async def scenario(one: World) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            assert (await one.get("/v1/files")).status == 503
        assert (await one.get("/v1/files")).status == 200

    play(tmp_path, scenario)
