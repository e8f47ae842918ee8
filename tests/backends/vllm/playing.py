"""The child's loop around a core that is played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec

from quintet.backends.native.wire.messages import EventRow, FromWorker, Row, Stepped, Submit
from quintet.backends.vllm.processing import Maker
from quintet.backends.vllm.sidecar import Sidecar
from quintet.backends.vllm.values import About, Asked, Output, RejectedError
from quintet.backends.vllm.wire import Compiled
from quintet.backends.vllm.worker import VllmWorker
from quintet.events import Finish
from quintet.inputs.sequence import Adapter, PreparedSequence
from quintet.request import Sampling

EOS = 256
GREEDY = Sampling(0.0, 1.0, 0)


class PlayedCore:
    """vLLM's side: each sequence gets what ``say`` is told."""

    about = About(context=512, vocab=257, pages=100, page=16, most_tokens=2048, most_running=2, most_adapters=2, fingerprint="fp")

    def __init__(self) -> None:
        self.asked: dict[str, Asked] = {}
        self.outputs: dict[str, asyncio.Queue[Output | Exception]] = {}
        self.left: list[str] = []
        self.dead = False
        self.adapters: list[int] = []  # loaded, and with a minus those that had to go
        self.bad: set[int] = set()
        self.slow: asyncio.Event | None = None  # what loading an adapter waits for

    async def adapt(self, adapter: Adapter) -> None:
        await (self.slow.wait() if self.slow else asyncio.sleep(0))
        if adapter.id in self.bad:
            raise RejectedError("no such adapter")
        self.adapters.append(adapter.id)

    async def forget(self, adapter: int) -> None:
        self.adapters.append(-adapter)

    processor: Maker | None = None

    async def run(self, asked: Asked) -> AsyncIterator[Output]:
        self.asked[asked.name] = asked
        queue = self.outputs[asked.name] = asyncio.Queue()
        try:
            while True:
                output = await queue.get()
                if isinstance(output, Exception):
                    raise output
                yield output
                if output.finished:
                    return
        finally:
            self.left.append(asked.name)


class World:
    """A worker, its core, and what the front hears."""

    def __init__(self) -> None:
        self.told: list[FromWorker] = []
        self.core = PlayedCore()
        self.sidecar = Sidecar()
        self.now = 10.0
        self.worker = VllmWorker(self.sidecar, lambda: self.now, self.told.append, frozenset({EOS}))
        self.worker.attach(self.core)

    async def submit(self, request_id: int, *sequences: PreparedSequence, tenant: str = "", adapter: Adapter | None = None) -> None:
        self.worker.receive(Submit.of(request_id, sequences, 5.0, tenant=tenant, adapter=adapter))
        await self.settle()

    async def say(self, name: str, *tokens: int, **more: Any) -> None:
        given: dict[str, Any] = {"scored": (), "prompt": None, "finished": False, "cached": 0, "scheduled": 7.0}
        self.core.outputs[name].put_nowait(Output(tokens, **(given | more)))
        await self.settle()

    async def compiled(self, *grammars: str) -> None:
        """A chooser says it."""
        self.sidecar._take(msgspec.msgpack.encode(Compiled(grammars, well=True)))
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def rows(self, request_id: int) -> list[Row]:
        return [row for one in self.told if isinstance(one, Stepped) for row in one.events.get(request_id, ())]

    def finishes(self, request_id: int) -> dict[int, Finish]:
        return {row.seq: row.finish for row in self.rows(request_id) if isinstance(row, EventRow) and row.finish}

    def last(self) -> Stepped:
        return next(one for one in reversed(self.told) if isinstance(one, Stepped))


def played(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        world = World()
        try:
            await scenario(world)
        finally:
            world.sidecar.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    asyncio.run(run())


def one(tokens: tuple[int, ...] = (1, 2, 3), max_tokens: int = 3, sampling: Sampling = GREEDY, **more: Any) -> PreparedSequence:
    return PreparedSequence(tokens, max_tokens, sampling, more.pop("logprobs", None), more.pop("echo", False), **more)
