"""One simulated world: a server's engine, its clients and all that goes wrong between them, out of one seed.

In every fourth world they ask over HTTP, the real application with keys, limits and a ledger (``served``, ``visitors``), in a process that
may be killed (``fronts``).

What is real: the service, the preparer, the engine's verbs, requests in flight, supervisor, watchdog, link, codec, worker, scheduler, page
table, prefix cache, drafts, stepper and samplers. What is simulated: time (``clock``), the process and the socket to it (``link``), the
model's arithmetic (``model``) and who asks (``client``). Nothing else is random: the same seed is the same world, to the last event.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from tests.simulation.client import Clients, Requests
from tests.simulation.clock import SimulatedLoop, StuckError, Violation
from tests.simulation.faults import Chance, Fault
from tests.simulation.fronts import Fronts
from tests.simulation.invariants import Watch, WatchedEngine, WatchedStream
from tests.simulation.link import Machine, SimulatedConnection
from tests.simulation.model import CONTEXT, TOKENIZER
from tests.simulation.scheduling import WatchedQueue
from tests.simulation.served import Served, Settings, simulated
from tests.simulation.visitors import Visitors

from quintet.backends.base import State
from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.front import engine as engine_module
from quintet.backends.native.front import process as process_module
from quintet.backends.native.front.process import ProcessLink
from quintet.backends.native.schedule import queues as queues_module
from quintet.backends.native.wire.messages import FromWorker
from quintet.backends.native.wire.sources import ModelSource
from quintet.config import EngineConfig
from quintet.executor import FairExecutor
from quintet.guides.check import GuideCheck
from quintet.inputs.images.reader import ImageReader
from quintet.inputs.prepare import Preparer
from quintet.service import service
from quintet.service.service import Service

REQUESTS = 200
"""Of one world: enough for much to go wrong at once, and few enough to read."""


LOOK_S = 10.0
"""Simulated seconds between two looks at who waits for too long."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a world is set up."""

    config: EngineConfig
    tenants: tuple[tuple[str, int], ...]
    clients: int
    think_s: float
    step_s: float
    token_s: float
    drained: int
    fragile: bool
    served: bool
    drafted: bool
    window: int

    @classmethod
    def draw(cls, random: Random, other: Random) -> Setting:
        """Small machines and large ones, in every combination; what came later is drawn from ``other``, so that known worlds stay."""
        pages = random.choice([CONTEXT // PAGE, 16, 24, 40, 100, 300])
        config = EngineConfig(
            kv_bytes=pages * PAGE * 8,
            batch_tokens=random.choice([16, 24, 32, 64, 128]),
            max_running=random.choice([1, 2, 4, 8, 16, 16]),
            max_waiting=random.choice([2, 8, 32, 64]),
            max_sequences=8,
            speculation=random.random() < 0.5,
        )
        weights = random.choices([1, 1, 2, 4], k=random.randint(1, 5)) if random.random() < 0.5 else [1] * random.randint(1, 5)
        tenants = tuple((f"tenant {number}", weight) for number, weight in enumerate(weights)) if random.random() < 0.8 else (("", 1),)
        step_s = 10 ** random.uniform(-3, -1)
        clients = random.choice([2, 8, 16, 24, 32])
        think_s = step_s * random.choice([0.3, 3, 30])
        rest = random.choice([0, 0, 20]), random.random() < 0.02, random.random() < 0.25
        drafted = config.speculation and random.random() < 0.5
        if drafted:
            config = replace(config, kv_bytes=2 * config.kv_bytes)  # as many pages for the draft model
        return cls(
            config,
            tenants,
            clients,
            think_s,
            step_s,
            step_s / 50,
            *rest,
            drafted,
            other.choice([0, 0, 0, 0, 5, 16, 40, 100]),
        )

    @property
    def bound_s(self) -> float:
        """Seconds in which a request ends where nothing goes wrong: all that the queue holds, each to its end, one after the other."""
        steps = (self.config.live_limit + 1) * 2 * CONTEXT
        return 10 + steps * (self.step_s + self.token_s * self.config.batch_tokens)

    @property
    def abort_s(self) -> float:
        """Seconds in which nothing more comes of what was called off: the step that runs, the next, and the way there and back."""
        return 3 * (self.step_s + self.token_s * self.config.batch_tokens) + 0.01


class WatchedLink(ProcessLink):
    """A link whose messages are looked at."""

    def __init__(self, watch: Watch, config: EngineConfig) -> None:
        super().__init__(ModelSource(path="", threads=1, context=None, name="simulated"), lambda: TOKENIZER, config)
        self._watch = watch

    def start(self, receive: Callable[[FromWorker], None]) -> None:
        super().start(lambda message: self._watch.hears(message, receive))


class World:
    """A world that has not begun.

    Args:
        requests: that are asked.
        without, only: see ``Chance``.
    """

    def __init__(self, seed: int, requests: int = REQUESTS, without: Collection[Fault] = (), only: Collection[Fault] | None = None) -> None:
        self.seed, self._requests = seed, requests
        self.chance = Chance(seed, without, only)
        self.setting = Setting.draw(self.chance.stream("setting"), self.chance.stream("window"))
        self._loop = SimulatedLoop()
        self.watch = Watch(self._loop, self.setting.bound_s, self.setting.abort_s, self.setting.config.live_limit, self.setting.window)

    @property
    def ends(self) -> Counter[str]:
        """How requests and sequences have ended."""
        return self.watch.ends

    @property
    def seconds(self) -> float:
        """Simulated."""
        return self._loop.time()

    def run(self) -> None:
        """To the end.

        Raises:
            Violation: a promise is broken.
        """
        setting = self.setting
        links, times = self.chance.stream("links"), (setting.step_s, setting.token_s)
        machine = Machine(self._loop, self.chance, self.watch, links, *times, setting.fragile, setting.drafted, setting.window)
        with _simulated(machine), simulated(self._loop, self.chance, self.watch) if setting.served else nullcontext() as file:
            try:
                self._loop.run(self._main(file))
            except StuckError as error:
                raise Violation(f"time: {error}") from error

    async def _main(self, file: Path | None) -> None:
        """``file``: where the ledger may be, if there is a server."""
        setting, watch, loop = self.setting, self.watch, self._loop
        requests, random = Requests(self.chance.stream("requests"), setting.tenants), self.chance.stream("clients")
        crowd: dict[str, Any] = {"loop": loop, "chance": self.chance, "watch": watch, "requests": requests, "random": random}
        crowd["think_s"] = setting.think_s
        guides, clients, visitors = GuideCheck(), None, None
        if file is None:
            executor, engine = FairExecutor(), self._engine()
            service = Service(engine, Preparer(engine, guides, executor, ImageReader(executor)), loop.time)
            clients = Clients(engine=engine, service=service, **crowd)
        else:
            settings = Settings.draw(self.chance.stream("server"), setting.tenants, setting.bound_s)
            fixed = settings, self.chance.stream("seeds"), file, itertools.count()
            fronts = Fronts(loop, self.chance, watch, file, lambda: Served(loop, self._engine(), *fixed))
            visitors = Visitors(fronts=fronts, keyed=bool(settings.keys), **crowd)
        asking = clients or visitors
        assert asking is not None and watch.engine is not None
        self._look()
        while watch.engine.health().state is State.LOADING and not setting.fragile:
            await asyncio.sleep(0.1)
        await asking.run(setting.clients, self._requests - setting.drained)
        if setting.drained:
            last = asyncio.create_task(asking.run(setting.clients, setting.drained))
            await asyncio.sleep(setting.step_s * 10)
            watch.engine.drain()
            watch.trace("drains")
            await last
        await self._end(visitors)
        self._looks.cancel()
        await guides.close()

    def _engine(self) -> WatchedEngine:
        """A new one, which the watch sees from now on."""
        watch, config = self.watch, self.setting.config
        link = WatchedLink(watch, config)
        watch.engine = made = WatchedEngine(watch, link, config, clock=self._loop.time, memory=lambda: (1 << 40, 1 << 40))
        return made

    def _look(self) -> None:
        self.watch.check_ages()
        self._looks = self._loop.call_later(LOOK_S, self._look)

    async def _end(self, visitors: Visitors | None) -> None:
        """Everything ends of itself, and nothing is left."""
        fronts = visitors.fronts if visitors else None
        if fronts is not None:
            fronts.mortal = False
            while fronts.current is None:
                await asyncio.sleep(1.0)
        engine = self.watch.engine
        assert engine is not None
        while engine.live:
            await asyncio.sleep(1.0)
        self.watch.check_counts()
        child = engine._supervisor._link._child  # type: ignore[attr-defined]
        if child is not None and child.process.worker is not None:
            child.process.worker.check()
        await asyncio.sleep(60.0 if visitors else 1.0)  # for what ends after its client has left
        self.watch.closing = True
        await engine.close()
        if fronts is not None and visitors is not None and fronts.current is not None:
            await fronts.current.registry.close()
            fronts.current.ledger.close()
            fronts.check(visitors.whole)
            fronts.bury()
        work = engine._in_flight
        if work._in_flight or work.live or self.watch.requests:
            raise Violation("leaks: the front holds a request when all have ended")


@contextmanager
def _simulated(machine: Machine) -> Iterator[None]:
    """The simulated parts stand in the places of the real ones."""
    places: list[tuple[Any, str, Any]] = [
        (process_module, "spawn", lambda module, level, form: module),
        (process_module, "trim", lambda: None),  # the collector's time is real
        (process_module, "Connection", functools.partial(SimulatedConnection, machine)),
        (engine_module, "Stream", functools.partial(WatchedStream, machine.watch)),
        (queues_module, "WaitingQueue", WatchedQueue),
        (service, "_ids", itertools.count(1)),
    ]
    collects, level = gc.isenabled(), logging.root.manager.disable
    gc.disable()
    logging.disable(logging.CRITICAL)  # what goes wrong is no news here
    try:
        with ExitStack() as stack:
            for module, name, made in places:
                stack.enter_context(patch.object(module, name, made))
            yield
    finally:
        logging.disable(level)
        if collects:
            gc.enable()
