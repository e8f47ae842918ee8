"""A server whose every computation is another, for what is to be computed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.backends.contract.conftest import ready
from tests.server.asgi import JSON, Answer, acall
from tests.server.one import create_app

from quintet.backends.base import Backend
from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import EOS, toy_loader
from quintet.config import EngineConfig, ServerConfig
from quintet.server.asgi import ASGIApp
from quintet.server.source import Source

PROMPT = {"prompt": "once", "max_tokens": 24, "temperature": 1, "logit_bias": {str(EOS): -100}}


@dataclass
class World:
    """An application whose every computation is another: without a key, no two answers are equal."""

    app: ASGIApp
    engine: Backend

    async def post(self, body: object, key: str | None = "k", *, api_key: str = "sk-a", **options: Any) -> Answer:
        headers = [*JSON, ("authorization", f"Bearer {api_key}"), *([("idempotency-key", key)] if key else [])]
        return await acall(self.app, body, headers=headers, **options)

    def computed(self) -> int:
        """Tokens, by the engine's own count."""
        return self.engine.health().counts.tokens


@dataclass
class Clock:
    """Time that stands still, and a seed that is never the same."""

    now: float = 0.0
    drawn: int = 0

    def __call__(self) -> float:
        return self.now

    def seed(self) -> int:
        self.drawn += 1
        return self.drawn


@asynccontextmanager
async def world(clock: Clock) -> AsyncIterator[World]:
    async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=4 << 20))) as engine:
        config = ServerConfig(api_keys=("sk-a", "sk-b"))
        yield World(create_app(engine, config, ("toy",), source=Source(seed=clock.seed, clock=clock)), engine)


def run(scenario: Callable[[World, Clock], Awaitable[None]]) -> None:
    async def go() -> None:
        clock = Clock()
        async with world(clock) as made:
            await scenario(made, clock)

    asyncio.run(go())
