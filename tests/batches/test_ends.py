"""How a batch ends other than by its last line: its time, its file's, a client's word, and what is known of it then."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.batches.conftest import NAME, NOW, World, body, plain

from quintet.batch import ENDED, Status
from quintet.batches import runner as module
from quintet.batches.lines import Answer
from quintet.batches.runner import PendingLine
from quintet.batches.store import Store


async def ten_alone(job: PendingLine) -> Answer:
    """The first ten lines are computed, no other ever."""
    if job.line.number > 10:
        await asyncio.Event().wait()
    return body(job)


@pytest.mark.fault("J05")
@pytest.mark.parametrize("together", [4, module._AT_ONCE_UNDONE], ids=["a few at a time", "at once"])
def test_time_ends_a_batch_and_says_so_for_each_line_that_was_not_computed(
    world: World, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE_UNDONE", together)

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
        assert await world.desk.do(lambda store: store.find_batch(NAME)) is None

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


def test_a_batch_whose_file_is_gone_fails(world: World) -> None:
    async def go() -> None:
        await world.put(1)
        world.folder.content("file-1").unlink()
        async with world.running(plain):
            batch = await world.until(*ENDED)
        assert batch.status is Status.FAILED and batch.faults[0].code == "missing_file"

    asyncio.run(go())


@pytest.mark.fault("J05")
@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: os.truncate(path, path.stat().st_size * 3 // 4),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"custom_id": "18"', b'"custom_id": "81"')),
        lambda path: path.write_bytes(path.read_bytes()[:-60] + b"\x00\xff" * 30),
    ],
    ids=["cut", "another's", "garbage"],
)
def test_a_line_whose_bytes_are_damaged_waits_until_they_are_put_back_and_the_others_are_answered(
    world: World, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], object]
) -> None:
    asked: list[tuple[int, bytes]] = []

    async def compute(job: PendingLine) -> Answer:
        asked.append((job.line.number, job.body))
        if job.line.number == 1:
            await asyncio.to_thread(spoil, content)
        return body(job)

    async def go() -> None:
        await world.put(20)
        whole = content.read_bytes()
        async with world.running(compute):
            await world.until_completed(12)
            await asyncio.sleep(0.3)
            assert (await world.known()).status is Status.IN_PROGRESS
            content.write_bytes(whole)
            batch = await world.until(*ENDED)
        assert (batch.status, batch.completed) == (Status.COMPLETED, 20)
        assert sorted(asked) == [(number, b'{"prompt": "x"}') for number in range(1, 21)], "each once, and none of the damaged"

    content = world.folder.content("file-1")
    asyncio.run(go())
    said = [record.message for record in caplog.records]
    assert said and all(str(content) in line for line in said) and len(said) <= 4, "once for each that waits"
