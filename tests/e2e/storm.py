"""Load on an engine in a process of its own, and ways to hurt it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tests.support.preparing import prepare

from quintet.backends.base import State
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.in_flight import REFUSED
from quintet.backends.native.front.process import ProcessLink
from quintet.backends.native.front.spawn import MODULE
from quintet.backends.native.wire.sources import ModelSource
from quintet.backends.toy import ToyTokenizer
from quintet.config import EngineConfig
from quintet.events import Finish, TokenEvent
from quintet.inputs.sequence import SequenceSpec
from quintet.request import Sampling

CONFIG = EngineConfig(kv_bytes=1 << 20, batch_tokens=64, max_running=8, max_waiting=400, max_sequences=8)
STALL_S = 1.0
PATIENCE_S = 120.0
"""For a busy test machine; a restart takes well under a second."""

SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP, signal.SIGABRT)


def spec(prompt: str, max_tokens: int = 8, seed: int = 0) -> SequenceSpec:
    return SequenceSpec(prompt, max_tokens, Sampling(1.0, 1.0, seed), 1, echo=False)


@asynccontextmanager
async def engine(module: tuple[str, ...] = MODULE, config: EngineConfig = CONFIG) -> AsyncIterator[tuple[Engine, ProcessLink]]:
    """A ready engine over the toy, closed at the end."""
    link = ProcessLink(ModelSource(path="", threads=1, context=None, name="toy"), ToyTokenizer, config, module)
    made = Engine(link, config, stall_s=STALL_S)
    try:
        await ready(made)
        yield made, link
    finally:
        await made.close()


async def ready(made: Engine) -> float:
    """Seconds until it is ready."""
    begin = time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        while made.health().state is not State.READY:
            await asyncio.sleep(0.002)
    return time.monotonic() - begin


async def stepped(made: Engine, count: int) -> None:
    """Wait until the engine has made so many steps more, or has nothing to do. However slow the machine: every life gets as far."""
    goal = made.health().counts.steps + count
    async with asyncio.timeout(PATIENCE_S):
        while made.health().counts.steps < goal and made.live:
            await asyncio.sleep(0.001)


async def hurt(made: Engine, link: ProcessLink, number: int) -> float:
    """Send a signal to the engine's process; seconds from when its end is noticed until another is ready."""
    pid = link.pid
    assert pid is not None
    os.kill(pid, number)
    async with asyncio.timeout(PATIENCE_S):
        while link.pid == pid:
            await asyncio.sleep(0.001)
    assert made.health().state is not State.READY, "health is honest as soon as the link is"
    return await ready(made)


async def answer(made: Engine, one: SequenceSpec, *, shown: bool = True) -> list[TokenEvent]:
    """All events of a request, checked for what holds of each."""
    prepared = replace(await prepare(made, [one]), shown=shown)
    async with asyncio.timeout(PATIENCE_S):
        events = [event async for batch in made.submit(prepared) for event in batch]
    assert [event.finish is not None for event in events] == [False] * (len(events) - 1) + [True]
    return events


def told(events: list[TokenEvent]) -> list[tuple[int, bytes, float | None]]:
    return [(event.token, event.piece, event.logprob) for event in events]


class Load:
    """Clients that ask without a pause, each a request of its own every time, and what became of these.

    Args:
        seen: how requests ended: ``ok``, ``broken`` after something was shown, ``twice`` after two deaths though nothing was,
            ``suspected`` as two engines died of it for all that can be told.
        lost: why others ended before anything was delivered.
    """

    def __init__(self, made: Engine, clients: int, rng: random.Random) -> None:
        self._made, self._rng = made, rng
        self._tasks = [asyncio.create_task(self._client(index)) for index in range(clients)]
        self._stop = False
        self.seen: Counter[str] = Counter()
        self.lost: list[str] = []

    async def _client(self, index: int) -> None:
        number = 0
        while not self._stop:
            await ready(self._made)
            number += 1
            shown = number % 2 == 0
            asked = spec(f"client {index} asks {number}", self._rng.randint(1, 400), number)
            events = await answer(self._made, asked, shown=shown)
            if events[-1].finish is not Finish.ERROR:
                self.seen["ok"] += 1
            elif len(events) > 1:
                self.seen["broken" if shown else "twice"] += 1
            elif events[-1].error == REFUSED:
                self.seen["suspected"] += 1
            else:
                self.lost.append(events[-1].error)

    async def end(self) -> None:
        """Wait until every client has its last answer."""
        self._stop = True
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._tasks)


def children() -> set[int]:
    """Processes started by this one that are not gone (zombies count)."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.add(int(path.parent.name))
    return found


def holdings() -> tuple[int, int, set[int]]:
    """Open descriptors, threads, children."""
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), children()
