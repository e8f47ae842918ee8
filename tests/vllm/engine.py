"""An engine over the real vLLM for tests: it takes long to start, so many share one, on an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from operator import sub
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from tests.support.preparing import preparer_of

from quintet.backends.base import Backend, Counts, Health, State
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.process import ProcessLink
from quintet.backends.native.wire.sources import VllmSource
from quintet.backends.native.worker.load import load_tokenizer
from quintet.config import EngineConfig, VllmConfig
from quintet.events import TokenEvent
from quintet.inputs.sequence import Prepared

OPTIONS = VllmConfig(dtype="float32", kv_bytes=64 << 20, vllm_arg=("enforce_eager=true", "block_size=32"))
CONFIG = EngineConfig(max_running=8, max_waiting=200, max_sequences=12)
START_S = 600.0
T = TypeVar("T")


def link_to(
    path: Path, config: EngineConfig = CONFIG, context: int = 512, *, vision: Literal["", "layout", "processor"] = ""
) -> ProcessLink:
    """To a child that loads the model of a folder."""
    return ProcessLink(
        VllmSource(path=str(path), name=path.name, context=context, options=OPTIONS, vision=vision),
        lambda: load_tokenizer(path, any_model=True),
        config,
    )


async def until_ready(engine: Engine) -> None:
    """Wait, and say why it never will be."""
    async with asyncio.timeout(START_S):
        while (state := engine.health().state) is not State.READY:
            assert state is not State.DEAD, engine.failure
            await asyncio.sleep(0.05)


class Lent:
    """A shared engine as one test has it: it counts from zero, and closing it is the end of it for all."""

    def __init__(self, shared: Shared, engine: Engine) -> None:
        self._shared, self._engine = shared, engine
        self._before = engine.health()
        self.over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        return self._engine.submit(prepared)

    def health(self) -> Health:
        now = self._engine.health()
        batches = tuple(map(sub, now.batches, self._before.batches))
        return replace(now, counts=Counts(*map(sub, now.counts, self._before.counts)), batches=batches)

    async def close(self) -> None:
        if not self.over:
            await self._shared.close()


class Shared:
    """An engine that is started when it is first needed, and again when a test has closed it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engine: Engine | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def check(self, scenario: Callable[[Any], Awaitable[T]]) -> T:
        """Run a coroutine function on the engine."""
        return self._run(self._on(scenario))

    async def close(self) -> None:
        """End the engine; the next to need it starts another."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    def end(self) -> None:
        """Nobody needs it any more."""
        self._run(self.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _on(self, scenario: Callable[[Any], Awaitable[T]]) -> T:
        if self._engine is None:
            self._engine = Engine(link_to(self._path), CONFIG)
        await until_ready(self._engine)
        lent = Lent(self, self._engine)
        try:
            return await scenario(lent)
        finally:
            lent.over = self._engine is not None
            preparer_of(cast("Backend", lent))
            await lent.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
