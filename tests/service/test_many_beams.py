"""Beam searches over many prompts: others have their turn between any two of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.backends.contract.conftest import ready
from tests.support.preparing import service
from tests.support.scripted_backend import request

from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import toy_loader
from quintet.config import EngineConfig
from quintet.events import ChoiceDone
from quintet.request import Beams
from quintet.service import beams

PROMPTS, WIDTH, STEPS = 12, 2, 3


def test_others_have_their_turn_between_the_searches_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand beams of a hundred prompts held the event loop up for thirty milliseconds at each step."""
    turn = 0
    work: Counter[tuple[str, int]] = Counter()

    def noted(name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def note(*about: Any) -> Any:
            work[name, turn] += 1
            return do(*about)

        return note

    monkeypatch.setattr(beams, "_after", noted("after", beams._after))
    monkeypatch.setattr(beams.Search, "feed", noted("feed", beams.Search.feed))

    async def others() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def scenario() -> int:
        async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=4 << 20))) as engine:
            asked = replace(request(*map(str, range(PROMPTS)), n=WIDTH), max_tokens=STEPS, beams=Beams())
            job = await service(engine).prepare(asked)
            other = asyncio.create_task(others())
            ends = [event async for events in job.events() for event in events if isinstance(event, ChoiceDone)]
            other.cancel()
            return len(ends)

    assert asyncio.run(scenario()) == PROMPTS * WIDTH
    assert max(count for (name, _), count in work.items() if name == "feed") == 1
    assert max(count for (name, _), count in work.items() if name == "after") <= WIDTH
