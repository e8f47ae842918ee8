"""The server over the toy engine, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.backends.contract.conftest import ready
from tests.server.asgi import SOURCE
from tests.server.one import create_app

from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import toy_loader
from quintet.config import MAX_LOGPROBS, EngineConfig, ServerConfig
from quintet.server.asgi import ASGIApp

MODEL = "golden"
"""What requests call the model, whichever it is."""


@asynccontextmanager
async def toy_app(dialect: str, clock: Callable[[], float] = lambda: 0.0, max_logprobs: int = MAX_LOGPROBS) -> AsyncIterator[ASGIApp]:
    """An application with a fresh toy engine, whose answers depend on nothing but the request; closed at the end.

    Without drafts: how many are right is told in the usage, and how many are made depends on what else runs.
    """
    async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22, speculation=False), clock=clock)) as engine:
        yield create_app(engine, ServerConfig(dialect=dialect, max_logprobs=max_logprobs), (MODEL,), source=SOURCE)
