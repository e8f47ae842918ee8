"""A seed that the server chose is told, and comes back from any client."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.backends.contract.conftest import ready
from tests.server.asgi import acall
from tests.server.one import create_app
from tests.server.toy import MODEL

from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import toy_loader
from quintet.batches.validation import draw_seed
from quintet.config import EngineConfig, ServerConfig
from quintet.server.source import Source

EXACT = 2**53
"""Below it, every integer is one of a double's."""


def ask(path: str, *bodies: dict[str, Any]) -> list[Any]:
    """Where seeds are drawn as they are in earnest."""

    async def asking() -> list[Any]:
        async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22))) as engine:
            app = create_app(engine, ServerConfig(dialect="together"), (MODEL,))
            return [(await acall(app, body, path=path)).json() for body in bodies]

    return asyncio.run(asking())


def test_a_seed_that_nobody_chose_is_whole_where_numbers_are_doubles() -> None:
    asked = {"model": MODEL, "prompt": "Once", "max_tokens": 1, "n": 8}
    seeds = [choice["seed"] for answer in ask("/v1/completions", *[asked] * 8) for choice in answer["choices"]]
    assert len(set(seeds)) == 64
    assert max(seeds) < EXACT
    lasts = [seed + 127 for seed in (*(Source().seed() for _ in range(1000)), *(draw_seed(line) for line in range(1000)))]
    assert max(lasts) < EXACT


def test_llama_servers_routes_tell_one_that_its_own_clients_can_hold() -> None:
    asked = {"prompt": "Once", "n_predict": 1, "n_cmpl": 8}
    seeds = [one["generation_settings"]["seed"] for answer in ask("/completion", *[asked] * 8) for one in answer]
    assert len(set(seeds)) == 64
    assert max(seeds) < 2**32
