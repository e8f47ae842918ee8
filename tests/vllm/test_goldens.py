"""Every golden's request on the real vLLM: an answer of the golden's structure, with right finish reasons, offsets and usage."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.e2e import test_golden_structure as structure
from tests.server.asgi import Answer
from tests.vllm.engine import link_to, until_ready
from tests.vllm.models import folder

from quintet.backends.native.front.engine import Engine
from quintet.config import EngineConfig

AHEAD = 1e12
"""Seconds. vLLM's clock is the machine's: by one that is so far ahead nothing has waited, as in the goldens."""

globals().update({name: value for name, value in vars(structure).items() if name.startswith("test_")})


@pytest.fixture(scope="module")
def model_path() -> Path:
    """A tiny model: what it says does not matter."""
    return folder("llama")


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[Answer, int]]:
    async def run() -> dict[str, tuple[Answer, int]]:
        config = EngineConfig()
        engine = Engine(link_to(folder("llama"), config, structure.CONTEXT), config, clock=lambda: AHEAD)
        try:
            await until_ready(engine)
            return await structure.all_answers(engine)
        finally:
            await engine.close()

    return asyncio.run(run())
