"""A request of many choices: a few bytes ask for a thousand."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.backends.contract.conftest import ready
from tests.support.scripted_backend import request

from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import toy_loader
from quintet.config import EngineConfig
from quintet.executor import FairExecutor
from quintet.guides.check import GuideCheck
from quintet.inputs import prepare
from quintet.inputs.images.reader import ImageReader
from quintet.inputs.prepare import Preparer
from quintet.request import CompletionRequest
from quintet.service import service as module
from quintet.service.service import Service

STEPS = ["specs_of", "require_supported", "require_fitting", "resolve", "Job"]


@pytest.mark.parametrize("asked", [request("a", n=1000), request(*(f"a{at}" for at in range(1000)))], ids=["samples", "prompts"])
def test_many_choices_are_spelled_out_off_the_event_loop(monkeypatch: pytest.MonkeyPatch, asked: CompletionRequest) -> None:
    """They held it up for thirty milliseconds and more."""
    steps: list[tuple[str, bool]] = []

    def note(name: str) -> None:
        place = module if hasattr(module, name) else prepare
        work = getattr(place, name)

        def noted(*about: Any) -> Any:
            steps.append((name, threading.current_thread() is threading.main_thread()))
            return work(*about)

        monkeypatch.setattr(place, name, noted)

    async def scenario() -> None:
        executor = FairExecutor()
        async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=4 << 20))) as engine:
            made = Service(engine, Preparer(engine, GuideCheck(), executor, ImageReader(executor)), lambda: 0.0)
            await made.prepare(asked)
            await made.prepare(request("a"))

    for name in STEPS:
        note(name)
    asyncio.run(scenario())
    assert steps == [*((name, False) for name in STEPS), *((name, True) for name in STEPS)]
