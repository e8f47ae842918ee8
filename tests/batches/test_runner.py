"""The runner, and something in an engine's place: what is tried again, what waits for the disk, what a killed process leaves."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.batches.conftest import NAME, World, body, plain

from quintet.batch import ENDED, Batch, Status
from quintet.batches import runner as module
from quintet.batches.folder import Draft, Folder
from quintet.batches.lines import Answer, Line
from quintet.batches.runner import MOST_FAILURES, AgainError, PendingLine
from quintet.batches.store import Store
from quintet.batches.validation import Contents, validate


@pytest.mark.parametrize("piece", [1, module._PIECE_BYTES], ids=["line by line", "at once"])
def test_lines_are_written_in_their_order_whatever_order_they_end_in(world: World, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(module, "_PIECE_BYTES", piece)

    async def go() -> None:
        async def slow_first(job: PendingLine) -> Answer:
            await asyncio.sleep(0.02 * (job.line.number % 4 == 1))
            return body(job) if job.line.number % 7 else Answer(400, b'{"error": 1}')

        await world.put(50)
        async with world.running(slow_first):
            batch = await world.until(*ENDED)
        assert (batch.status, batch.total, batch.completed, batch.failed) == (Status.COMPLETED, 50, 43, 7)
        names = [[int(str(line["custom_id"])) for line in world.lines_of(id_)] for id_ in (batch.output_file, batch.error_file)]
        assert names == [[n for n in range(1, 51) if n % 7], [n for n in range(1, 51) if n % 7 == 0]]
        assert set(batch.entered) == {"in_progress", "finalizing", "completed"}

    asyncio.run(go())


def full() -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_batches_go_on_beside_what_cannot_be_tidied_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that a file server puts everywhere; and a disk that takes no change. What is known stays, however old."""
    strange, draft = (world.folder.content(name) for name in ("@eaDir", f"{1:024x}.draft"))
    strange.mkdir()
    draft.touch()
    for path in (strange, draft):
        os.utime(path, (0, 0))

    async def go() -> None:
        await world.put(2)
        os.utime(world.folder.content("file-1"), (0, 0))
        async with world.running(plain):
            assert (await world.until(*ENDED)).completed == 2
        assert strange.is_dir() and not draft.exists()
        monkeypatch.setattr(Store, "expire", lambda *_: full())
        again = World(world.path.with_name("again"))
        await again.put(2)
        async with again.running(plain):
            assert (await again.until(*ENDED)).completed == 2

    asyncio.run(go())


def test_what_fails_at_every_look_is_said_once_and_names_the_folder(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []

    def fails(_: Store) -> list[Batch]:
        looks.append(1)
        raise sqlite3.DatabaseError("database disk image is malformed")

    async def go() -> None:
        await world.put(1)
        with monkeypatch.context() as broken:
            broken.setattr(Store, "open_batches", fails)
            async with world.running(plain):
                async with asyncio.timeout(20):
                    while len(looks) < 4:
                        await asyncio.sleep(0.01)
                assert caplog.messages == [f"batches in {world.path}: database disk image is malformed"]
                broken.undo()
                assert (await world.until(*ENDED)).completed == 1

    asyncio.run(go())


def test_lines_that_wait_for_an_engine_that_is_busy_keep_no_other_engine_from_those_that_come_later(world: World) -> None:
    later = f"{NAME}_6"

    async def go() -> None:
        async def held(job: PendingLine) -> Answer:
            if job.batch.id != later:
                await asyncio.Event().wait()
            return body(job)

        await world.put(9, others=7)
        async with world.running(held, engine=lambda batch: "idle" if batch.id == later else "busy"), asyncio.timeout(60):
            while len(left := await world.desk.do(Store.open_batches)) == 8:
                await asyncio.sleep(0.01)
            assert later not in {batch.id for batch in left} and not any(batch.completed for batch in left)

    asyncio.run(go())


@pytest.mark.fault("J05")
def test_no_more_bodies_are_in_memory_than_lines_are_computed_however_many_batches_there_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    take = module._body

    def counted(path: Path, line: Line) -> bytes:
        read.append(line.number)
        return take(path, line)

    monkeypatch.setattr(module, "_body", counted)

    async def go() -> None:
        go_on = asyncio.Event()

        async def held(job: PendingLine) -> Answer:
            await go_on.wait()
            return body(job)

        await world.put(9, others=7)
        async with world.running(held):
            async with asyncio.timeout(60):
                while len(asyncio.all_tasks()) < 8 * 4 or len(read) < 4:
                    await asyncio.sleep(0.01)
            assert len(read) == 4, "of 8 batches, each with 4 lines that wait"
            go_on.set()
            assert (await world.until(*ENDED)).completed == 9

    asyncio.run(go())


@pytest.mark.fault("J05")
def test_the_lines_of_one_file_are_in_memory_while_it_is_validated_however_many_batches_there_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, under_way, most = validate, set[object](), list[int]()

    def watched(*about: Any) -> Iterator[Contents]:
        me = object()
        under_way.add(me)
        for found in read(*about):
            for _ in range(3):  # others have their turns in between
                most.append(len(under_way))
                yield found
        under_way.discard(me)

    monkeypatch.setattr(module, "validate", watched)

    async def go() -> None:
        await world.put(9, others=7)
        async with world.running(plain):
            assert (await world.until(*ENDED)).completed == 9
            async with asyncio.timeout(60):
                while len(most) < 8 * 3:
                    await asyncio.sleep(0.01)
        assert set(most) == {1}

    asyncio.run(go())


def test_overload_is_waited_for_and_an_engine_that_dies_over_a_line_only_so_often(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_S", 0.01)
    tries: Counter[int] = Counter()

    async def compute(job: PendingLine) -> Answer:
        tries[job.line.number] += 1
        if job.line.number == 1 and tries[1] < 20:
            raise AgainError(0.001)
        if job.line.number == 1 and tries[1] == 20:  # which is its first failure: to wait is none
            raise AgainError(0.001, Answer(500, b"{}"))
        if job.line.number == 2:
            raise AgainError(0.001, Answer(500, b'{"error": "engine"}'))
        if job.line.number == 3 and tries[3] < MOST_FAILURES:
            raise AgainError(0.001, Answer(500, b"{}"))
        return body(job)

    async def go() -> None:
        await world.put(4)
        async with world.running(compute):
            batch = await world.until(*ENDED)
        assert tries == {1: 21, 2: MOST_FAILURES, 3: MOST_FAILURES, 4: 1}
        (failed,) = world.lines_of(batch.error_file)
        assert failed["custom_id"] == "2" and batch.completed == 3

    asyncio.run(go())


@pytest.mark.fault("J03")
def test_a_process_that_ends_anywhere_leaves_a_batch_that_the_next_one_ends_to_the_same_bytes(tmp_path: Path, world: World) -> None:
    """Every line ends its runner once, in the middle of a group that is computed; and so does the moment at which the files are there."""

    async def go() -> None:
        await world.put(30)
        once: set[int] = set()
        ends = asyncio.Event()

        async def compute(job: PendingLine) -> Answer:
            if job.line.number not in once:
                once.add(job.line.number)
                ends.set()
                await asyncio.Event().wait()
            return body(job)

        batch = await world.known()
        while len(once) < 30 or batch.status not in ENDED:
            ends.clear()
            async with world.running(compute):
                waiting = asyncio.create_task(ends.wait())
                await asyncio.wait({waiting, asyncio.create_task(world.until(*ENDED))}, return_when=asyncio.FIRST_COMPLETED)
            batch = await world.known()
        first = world.folder.content(str(batch.output_file)).read_bytes()
        assert len(first.splitlines()) == 30

    asyncio.run(go())


@pytest.mark.fault("J03")
def test_files_that_were_written_before_the_end_was_told_are_written_again_to_the_same_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their places: nothing else is left."""
    written: list[bytes] = []
    keep, finish = Draft.keep, Store.finish

    def killed(*_: object) -> None:
        raise OSError(errno.EIO, "as if it were killed here")

    def kept(self: Draft, id_: str) -> None:
        keep(self, id_)
        written.append(world.folder.content(id_).read_bytes())

    async def go() -> None:
        await world.put(5)
        monkeypatch.setattr(Draft, "keep", kept)
        monkeypatch.setattr(Store, "finish", killed)
        async with world.running(plain):
            await world.until(Status.FINALIZING)
            while len(written) < 2:
                await asyncio.sleep(0.01)
        monkeypatch.setattr(Store, "finish", finish)
        async with world.running(plain):
            batch = await world.until(Status.COMPLETED)
        output = world.folder.content(str(batch.output_file))
        assert len(set(written)) == 1 and output.read_bytes() == written[0]
        assert {path.name for path in output.parent.iterdir()} == {"file-1", batch.output_file}

    asyncio.run(go())


@pytest.mark.fault("J05")
def test_a_full_disk_holds_what_is_computed_begins_nothing_new_and_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    full = True
    room = Folder.require_room

    def require_room(self: Folder, more: int = 0) -> None:
        if full:
            raise OSError(errno.ENOSPC, "full")
        room(self, more)

    async def compute(job: PendingLine) -> Answer:
        begun.append(job.line.number)
        return body(job)

    async def go() -> None:
        nonlocal full
        await world.put(40)
        monkeypatch.setattr(Folder, "require_room", require_room)
        async with world.running(compute):
            await world.until(Status.IN_PROGRESS)
            await asyncio.sleep(0.3)
            assert len(begun) == 4 and (await world.known()).completed == 0
            full = False
            batch = await world.until(*ENDED)
        assert batch.completed == 40 and sorted(begun) == list(range(1, 41))

    asyncio.run(go())


@pytest.mark.fault("J05")
def test_an_output_that_the_disk_has_no_room_for_is_not_begun(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be written anew every second, up to where the disk is full, and take what little everybody else has."""
    tried: list[int] = []
    drafts: list[int] = []
    full, room, draft = True, Folder.require_room, Folder.draft

    def require_room(self: Folder, more: int = 0) -> None:
        if full and more > 2_000:  # a line has less
            tried.append(more)
            raise OSError(errno.ENOSPC, "full")
        room(self, more)

    def note(self: Folder) -> Draft:
        drafts.append(len(tried))
        return draft(self)

    async def go() -> None:
        nonlocal full
        await world.put(40)
        monkeypatch.setattr(Folder, "require_room", require_room)
        monkeypatch.setattr(Folder, "draft", note)
        monkeypatch.setattr("quintet.batches.runner.RETRY_S", 0.01)
        async with world.running(plain):
            await world.until(Status.FINALIZING)
            while len(tried) < 3:
                await asyncio.sleep(0.01)
            assert not drafts
            full = False
            batch = await world.until(Status.COMPLETED)
        assert tried == [world.folder.content(str(batch.output_file)).stat().st_size] * len(tried)

    asyncio.run(go())


def test_two_processes_never_compute_the_same_folder(world: World) -> None:
    async def go() -> None:
        await world.put(1)
        other = Folder(world.path)
        assert other.take()
        async with world.running(plain):
            await asyncio.sleep(0.2)
            assert (await world.known()).status is Status.VALIDATING
            other.leave()
            await world.until(Status.COMPLETED)
            assert not other.take()

    asyncio.run(go())


@pytest.mark.fault("J05")
def test_who_waits_for_the_folder_waits_on_where_its_lock_cannot_be_had_for_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        await world.put(1)
        lock, fails = fcntl.flock, iter([OSError(errno.ENOLCK, "No locks available")])

        def flock(fd: int, how: int) -> None:
            for error in fails:
                raise error
            lock(fd, how)

        monkeypatch.setattr("fcntl.flock", flock)
        async with world.running(plain):
            await world.until(Status.COMPLETED)

    asyncio.run(go())
