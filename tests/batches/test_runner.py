"""The runner, and something in an engine's place: what is tried again, what waits for the disk, what a killed process leaves."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quintet.batch import ENDED, Batch, File, NewBatch, Purpose, Status
from quintet.batches import runner as module
from quintet.batches.desk import Desk
from quintet.batches.folder import Draft, Folder
from quintet.batches.lines import Answer, Line
from quintet.batches.runner import MOST_FAILURES, AgainError, Job, Runner
from quintet.batches.store import Store
from quintet.batches.validation import Limits

NAME = "batch_1"
NOW = 1_700_000_000


def body(job: Job) -> Answer:
    return Answer(200, b'{"seed": %d}' % job.line.seed)


async def plain(job: Job) -> Answer:
    return body(job)


class World:
    """A folder, and a runner on it."""

    def __init__(self, path: Path) -> None:
        self.path, self.now = path, float(NOW)
        self.folder = Folder(path)
        self.desk = Desk(self.folder)

    async def put(self, lines: int, window: int | None = 3600, others: int = 0, expires: int | None = None) -> None:
        """A batch, and ``others`` of the same file, which ``expires``."""
        data = b"".join(b'{"custom_id": "%d", "body": {"prompt": "x"}}\n' % number for number in range(1, lines + 1))
        draft = self.folder.draft()
        draft.write(data)
        draft.keep("file-1")
        await self.desk.do(lambda store: store.add_file(File("file-1", "", "in", Purpose.BATCH, draft.size, NOW, expires, draft.lines)))
        asked = NewBatch("file-1", "/v1/completions", "24h", window, bare=True)
        for name in (NAME, *(f"{NAME}_{other}" for other in range(others))):
            batch = Batch(name, "", "openai", asked, NOW, NOW + window if window else None)
            await self.desk.do(partial(Store.add_batch, batch=batch, most_open=1 + others))

    @asynccontextmanager
    async def running(self, compute: Callable[[Job], Awaitable[Answer]], **more: Any) -> AsyncIterator[Runner]:
        runner = Runner(self.folder, self.desk, compute, lambda: self.now, limits=Limits(1000, 1000), keep=0.0, at_once=4, **more)
        task = asyncio.create_task(runner.run())
        try:
            yield runner
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def known(self) -> Batch:
        batch = await self.desk.do(lambda store: store.known(NAME))
        assert batch is not None
        return batch

    async def until(self, *status: Status) -> Batch:
        async with asyncio.timeout(60):
            while (batch := await self.known()).status not in status:
                await asyncio.sleep(0.01)
        return batch

    async def until_completed(self, lines: int) -> None:
        async with asyncio.timeout(60):
            while (await self.known()).completed < lines:
                await asyncio.sleep(0.01)

    def lines_of(self, id_: str | None) -> list[dict[str, object]]:
        return [json.loads(text) for text in self.folder.content(id_).read_bytes().splitlines()] if id_ else []


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(module, "POLL_S", 0.05)
    monkeypatch.setattr(module, "RETRY_S", 0.02)
    return World(tmp_path / "kept")


def test_lines_are_written_in_their_order_whatever_order_they_end_in(world: World) -> None:
    async def go() -> None:
        async def slow_first(job: Job) -> Answer:
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
    """A directory that a file server puts everywhere; and a disk that takes no change of what is known."""
    strange, draft = (world.folder.content(name) for name in ("@eaDir", "killed.draft"))
    strange.mkdir()
    draft.touch()
    for path in (strange, draft):
        os.utime(path, (0, 0))

    async def go() -> None:
        await world.put(2)
        async with world.running(plain):
            assert (await world.until(*ENDED)).completed == 2
        assert strange.is_dir() and not draft.exists()
        monkeypatch.setattr(Store, "expire", lambda *_: full())
        again = World(world.path.with_name("again"))
        await again.put(2)
        async with again.running(plain):
            assert (await again.until(*ENDED)).completed == 2

    asyncio.run(go())


def test_lines_that_wait_for_an_engine_that_is_busy_keep_no_other_engine_from_those_that_come_later(world: World) -> None:
    later = f"{NAME}_6"

    async def go() -> None:
        async def held(job: Job) -> Answer:
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

        async def held(job: Job) -> Answer:
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


def test_overload_is_waited_for_and_an_engine_that_dies_over_a_line_only_so_often(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_S", 0.01)
    tries: Counter[int] = Counter()

    async def compute(job: Job) -> Answer:
        tries[job.line.number] += 1
        if job.line.number == 1 and tries[1] < 20:
            raise AgainError(0.001)
        if job.line.number == 2:
            raise AgainError(0.001, Answer(500, b'{"error": "engine"}'))
        if job.line.number == 3 and tries[3] < MOST_FAILURES:
            raise AgainError(0.001, Answer(500, b"{}"))
        return body(job)

    async def go() -> None:
        await world.put(4)
        async with world.running(compute):
            batch = await world.until(*ENDED)
        assert tries == {1: 20, 2: MOST_FAILURES, 3: MOST_FAILURES, 4: 1}
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

        async def compute(job: Job) -> Answer:
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


def test_files_that_were_written_before_the_end_was_told_are_written_again_to_the_same_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert len(set(written)) == 1 and world.folder.content(str(batch.output_file)).read_bytes() == written[0]

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

    async def compute(job: Job) -> Answer:
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


async def ten_alone(job: Job) -> Answer:
    """The first ten lines are computed, no other ever."""
    if job.line.number > 10:
        await asyncio.Event().wait()
    return body(job)


@pytest.mark.fault("J05")
def test_time_ends_a_batch_and_says_so_for_each_line_that_was_not_computed(world: World) -> None:
    async def go() -> None:
        await world.put(25)
        async with world.running(ten_alone):
            await world.until_completed(10)
            world.now += 3600
            batch = await world.until(*ENDED)
        assert (batch.status, batch.completed, batch.failed) == (Status.EXPIRED, 10, 15)
        assert len(world.lines_of(batch.output_file)) == 10
        late = world.lines_of(batch.error_file)
        assert [line["custom_id"] for line in late] == [str(number) for number in range(11, 26)]
        assert all(line["response"] is None and dict(line["error"])["code"] == "batch_expired" for line in late)  # type: ignore[call-overload]

    asyncio.run(go())


def test_a_batch_is_known_for_as_long_after_its_end_as_its_files_are_kept_however_long_it_took(world: World) -> None:
    async def go() -> None:
        await world.put(1)
        world.now += 1000
        async with world.running(plain):
            await world.until(Status.COMPLETED)
        await world.desk.do(lambda store: store.expire(world.now + 99, 100))
        assert (await world.known()).status is Status.COMPLETED
        await world.desk.do(lambda store: store.expire(world.now + 100, 100))
        assert await world.desk.do(lambda store: store.known(NAME)) is None

    asyncio.run(go())


@pytest.mark.fault("J05")
def test_a_file_that_expires_stays_until_the_batch_that_reads_it_has_ended(world: World) -> None:
    async def go() -> None:
        async def known() -> set[str]:
            await world.desk.do(lambda store: store.expire(NOW + 61.0, 0.0))
            return await world.desk.do(Store.known_files)

        await world.put(1, expires=NOW + 60)
        assert await known() == {"file-1"}
        async with world.running(plain):
            batch = await world.until(*ENDED)
        assert batch.completed == 1
        assert await known() == {batch.output_file}

    asyncio.run(go())


@pytest.mark.fault("J05")
def test_a_cancelled_batch_keeps_what_there_was(world: World) -> None:
    async def go() -> None:
        await world.put(25)
        async with world.running(ten_alone) as runner:
            await world.until_completed(10)
            await world.desk.do(lambda store: store.cancel(NAME, "", world.now))
            runner.wake()
            batch = await world.until(*ENDED)
        assert (batch.status, batch.completed, batch.failed) == (Status.CANCELLED, 10, 15)
        assert {"cancelling", "cancelled"} <= set(batch.entered)
        assert len(world.lines_of(batch.output_file)) == 10
        assert {dict(one["error"])["code"] for one in world.lines_of(batch.error_file)} == {"batch_cancelled"}  # type: ignore[call-overload]

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


def test_a_batch_whose_file_is_gone_fails(world: World) -> None:
    async def go() -> None:
        await world.put(1)
        world.folder.content("file-1").unlink()
        async with world.running(plain):
            batch = await world.until(*ENDED)
        assert batch.status is Status.FAILED and batch.faults[0].code == "missing_file"

    asyncio.run(go())
