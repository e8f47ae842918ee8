"""The backends that the contract is checked on. A new one is a new entry in ``BACKENDS``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.contributing.bigram import BigramEngine
from tests.reference.tiny_model import TinySpec, write_tiny
from tests.support.bundled import bundled_path
from tests.support.loading import native_loader
from tests.support.poor import PoorEngine

from quintet.backends.base import Backend, State
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.process import ProcessLink
from quintet.backends.native.wire.sources import ModelSource
from quintet.backends.native.worker.load import load_tokenizer
from quintet.backends.toy import ToyTokenizer, toy_loader
from quintet.config import EngineConfig
from quintet.deploy.pool import Pool
from quintet.deploy.scaling import Sizing

CONFIG = EngineConfig(kv_bytes=64 << 20, batch_tokens=48, max_running=8, max_waiting=200, max_sequences=12)
"""Small, so that the tests meet every limit: chunks, a queue, forks beyond the batch."""


def _toy(_: pytest.FixtureRequest) -> Path | None:
    return None


def _tiny(request: pytest.FixtureRequest) -> Path | None:
    folder: Path = request.getfixturevalue("tmp_path")
    return write_tiny(folder / "tiny.gguf", TinySpec("tiny"))


def _bundled(_: pytest.FixtureRequest) -> Path | None:
    return bundled_path()


def _thread(path: Path | None) -> Engine:
    return Engine(native_loader(path, threads=2, context=512) if path else toy_loader(), CONFIG)


def _process(path: Path | None) -> Engine:
    source = ModelSource(path=str(path or ""), threads=2, context=512, name="test")
    return Engine(ProcessLink(source, (lambda: load_tokenizer(path)) if path else ToyTokenizer, CONFIG), CONFIG)


MODELS = {"toy": _toy, "tiny": _tiny, "bundled": _bundled}
LINKS = {"thread": _thread, "process": _process}
BACKENDS: dict[str, tuple[Callable[[pytest.FixtureRequest], Path | None], Callable[[Path | None], Backend]]] = {
    f"{model}-{link}": (MODELS[model], LINKS[link])
    for model in MODELS
    for link in LINKS
    if (model, link) != ("bundled", "thread")  # loading it takes its time; serve has it in a process
}

BACKENDS["toy-pool"] = (_toy, lambda path: Pool(lambda _: _thread(path), CONFIG, Sizing(2, 2)))
BACKENDS["tiny-kv8"] = (
    _tiny,
    lambda path: Engine(native_loader(path, threads=2, context=512, kv_type="q8") if path else toy_loader(), CONFIG),
)
BACKENDS["bigram"] = (_toy, lambda _: BigramEngine())
BACKENDS["toy-poor"] = (_toy, lambda path: PoorEngine(_thread(path)))

Scenario = Callable[[Backend], Awaitable[None]]
Check = Callable[[Scenario], None]


@asynccontextmanager
async def ready(backend: Backend) -> AsyncIterator[Backend]:
    """The backend once it is loaded; closed at the end."""
    try:
        while backend.health().state is State.LOADING:
            await asyncio.sleep(0.002)
        assert backend.health().state is State.READY
        yield backend
    finally:
        await backend.close()


@pytest.fixture(params=list(BACKENDS))
def check(request: pytest.FixtureRequest) -> Check:
    """``check(scenario)`` runs a coroutine function on each backend in turn, on an event loop of its own."""
    find, start = BACKENDS[request.param]
    model = find(request)

    async def on_backend(scenario: Scenario) -> None:
        async with asyncio.timeout(120), ready(start(model)) as backend:
            await scenario(backend)

    return lambda scenario: asyncio.run(on_backend(scenario))
