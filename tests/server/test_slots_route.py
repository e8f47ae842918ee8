"""llama-server's ``/slots`` on a server that takes many choices."""

from __future__ import annotations

import asyncio

from tests.backends.contract.conftest import ready
from tests.server.asgi import SOURCE, Answer, acall
from tests.server.one import create_app

from quintet.backends.native.core.loader import Loaded
from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import ToyRunner, ToyTokenizer
from quintet.config import EngineConfig, ServerConfig


def test_many_slots_are_told_of_in_portions_between_which_others_have_their_turn() -> None:
    turns = []

    async def other() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    async def go() -> Answer:
        config = EngineConfig(kv_bytes=1 << 22, max_sequences=10_000, max_waiting=10_000)
        async with ready(Engine(lambda progress: Loaded(ToyRunner(), ToyTokenizer(), name="toy", fingerprint="f"), config)) as engine:
            beside = asyncio.create_task(other())
            answer = await acall(create_app(engine, ServerConfig(), source=SOURCE), None, method="GET", path="/slots")
            beside.cancel()
            return answer

    answer = asyncio.run(go())
    assert [slot["id"] for slot in answer.json()] == list(range(10_000))
    assert len(turns) > 10 and len(answer.parts) > 10
