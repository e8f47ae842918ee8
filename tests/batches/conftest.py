"""A folder of batches, and a runner on it with something in an engine's place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quintet.batch import Batch, File, NewBatch, Purpose, Status
from quintet.batches import runner as module
from quintet.batches.desk import Desk
from quintet.batches.folder import Folder
from quintet.batches.lines import Answer
from quintet.batches.runner import PendingLine, Runner
from quintet.batches.store import Store
from quintet.batches.validation import Limits

NAME = "batch_1"
NOW = 1_700_000_000


def body(job: PendingLine) -> Answer:
    return Answer(200, b'{"seed": %d}' % job.line.seed)


async def plain(job: PendingLine) -> Answer:
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
        await self.desk.do(
            lambda store: store.add_file(
                File(
                    id="file-1",
                    owner="",
                    name="in",
                    purpose=Purpose.BATCH,
                    size=draft.size,
                    created=NOW,
                    expires=expires,
                    lines=draft.lines,
                )
            )
        )
        asked = NewBatch(input_file="file-1", endpoint="/v1/completions", window="24h", window_s=window, bare=True)
        for name in (NAME, *(f"{NAME}_{other}" for other in range(others))):
            batch = Batch(id=name, owner="", dialect="openai", asked=asked, created=NOW, expires=NOW + window if window else None)
            await self.desk.do(partial(Store.add_batch, batch=batch, most_open=1 + others))

    @asynccontextmanager
    async def running(self, compute: Callable[[PendingLine], Awaitable[Answer]], **more: Any) -> AsyncIterator[Runner]:
        runner = Runner(self.folder, self.desk, compute, lambda: self.now, limits=Limits(1000, 1000), keep=0.0, at_once=4, **more)
        task = asyncio.create_task(runner.run())
        try:
            yield runner
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def known(self) -> Batch:
        batch = await self.desk.do(lambda store: store.find_batch(NAME))
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
