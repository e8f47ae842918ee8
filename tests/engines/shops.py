"""Engines that do what they are told, and a registry of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from quintet.backends.base import Counts, Health, State
from quintet.engines.entry import Model
from quintet.engines.names import name_models
from quintet.engines.registry import Registry

PATIENCE_S = 30
"""For what must happen; nothing is expected to take so long."""


@dataclass
class Fake:
    """An engine that does what it is told."""

    state: State = State.LOADING
    live: int = 0
    failure: Exception | None = None
    drained: bool = False
    steps: int = 0

    def health(self) -> Health:
        return Health(State.DRAINING if self.drained else self.state, 0.5, counts=Counts(steps=self.steps), batches=(self.steps,) * 14)

    def drain(self) -> None:
        self.drained = True

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.state, self.drained = State.CLOSED, False


@dataclass
class Shop:
    """Makes engines and remembers them.

    Args:
        state: of new ones.
    """

    state: State = State.READY
    made: list[Fake] = field(default_factory=list)

    def start(self) -> Any:
        self.made.append(Fake(self.state))
        return self.made[-1]


def registry(
    shops: dict[str, Shop], *, lazy: bool = True, pinned: tuple[str, ...] = (), weights: int = 0, mapped: bool = False, **settings: Any
) -> Registry:
    models = [Model(name, shop.start, weights, weights // 10, lazy, name in pinned, mapped) for name, shop in shops.items()]
    return Registry(models, name_models([(name,) for name in shops]), **settings)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(bounded())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


async def asked(models: Registry, name: str) -> Any:
    """What a request does."""
    entry = models.find(name).entry
    with entry.held():
        return await models.ready(entry)
