"""API keys share a server: what one of them sends cannot keep the others out. Over the whole stack, on the toy engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.server.asgi import JSON, Answer, acall
from tests.server.one import create_app

from quintet.backends.base import State
from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import EOS, toy_loader
from quintet.config import EngineConfig, ServerConfig
from quintet.keys.key import Key
from quintet.keys.store import KeyStore

FLOOD = 1000
CONFIG = EngineConfig(kv_bytes=4 << 20, max_running=16, max_waiting=1024)


def body(number: int, max_tokens: int) -> dict[str, object]:
    return {"prompt": f"number {number}", "max_tokens": max_tokens, "logit_bias": {str(EOS): -100}, "temperature": 0}


@pytest.mark.fault("B21")
def test_a_key_that_floods_the_queue_gets_a_share_of_it_and_the_others_are_served_at_once() -> None:
    async def scenario() -> None:
        engine = Engine(toy_loader(), CONFIG)
        while engine.health().state is not State.READY:
            await asyncio.sleep(0.001)
        app = create_app(engine, ServerConfig(api_keys=("sk-flood", "sk-other", "sk-third")), ("toy",))

        def send(key: str, number: int, max_tokens: int, into: Answer) -> asyncio.Task[Answer]:
            headers = [*JSON, ("authorization", f"Bearer {key}")]
            return asyncio.create_task(acall(app, body(number, max_tokens), headers=headers, into=into))

        answers = [Answer() for _ in range(FLOOD)]
        flood = [send("sk-flood", number, 4000, answer) for number, answer in enumerate(answers)]
        await asyncio.sleep(0)
        while len([answer for answer in answers if answer.status]) < FLOOD - 520:
            await asyncio.sleep(0.001)
        for key in ("sk-other", "sk-third"):
            single = await send(key, 5000, 5, Answer())
            assert single.status == 200
            assert single.json()["usage"]["completion_tokens"] == 5
        assert Counter(answer.status for answer in answers) == {429: FLOOD - 520, 0: 520}, "half of 1,040, and none of it has ended"
        refused = next(answer for answer in answers if answer.status)
        assert 1 < int(refused.header("retry-after") or 0) <= 60, "a queue of a thousand long answers"
        assert "share of the queue" in refused.json()["error"]["message"]
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        while engine.live:
            await asyncio.sleep(0.001)
        await engine.close()

    asyncio.run(scenario())


@pytest.mark.fault("B21")
def test_a_key_of_higher_priority_gets_more_of_the_batch_and_the_other_goes_on(tmp_path: Path) -> None:
    """Both have 60 answers to wait for, with room for five at once: once all have asked, about four in five are the heavier's."""

    async def scenario() -> None:
        engine = Engine(toy_loader(), EngineConfig(kv_bytes=4 << 20, max_running=5, max_waiting=1024))
        while engine.health().state is not State.READY:
            await asyncio.sleep(0.001)
        store = KeyStore(tmp_path / "keys.db")
        light, heavy = (store.add(Key(b"", name, priority=priority)) for name, priority in (("light", 1), ("heavy", 4)))
        app = create_app(engine, ServerConfig(keys=store.path), ("toy",))
        done: Counter[str] = Counter()

        async def ask(key: str, number: int) -> None:
            answer = await acall(app, body(number, 30), headers=[*JSON, ("authorization", f"Bearer {key}")])
            assert answer.status == 200
            done[key] += 1

        tasks = [asyncio.create_task(ask(key, number)) for number in range(60) for key in (light, heavy)]
        while engine.live + done.total() < 120:
            await asyncio.sleep(0)
        before = done.copy()
        while done[heavy] < 60:
            await asyncio.sleep(0.001)
        assert done[light] >= 5
        assert done[light] - before[light] <= (done[heavy] - before[heavy]) / 2 + 5
        await asyncio.gather(*tasks)
        await engine.close()

    asyncio.run(scenario())


def test_without_keys_all_of_the_queue_may_be_filled() -> None:
    async def scenario() -> None:
        engine = Engine(toy_loader(), EngineConfig(kv_bytes=4 << 20, max_running=2, max_waiting=6))
        while engine.health().state is not State.READY:
            await asyncio.sleep(0.001)
        app = create_app(engine, ServerConfig(), ("toy",))
        answers = [Answer() for _ in range(10)]
        flood = [asyncio.create_task(acall(app, body(number, 4000), into=answer)) for number, answer in enumerate(answers)]
        while sum(answer.status != 0 for answer in answers) < 2:
            await asyncio.sleep(0.001)
        assert Counter(answer.status for answer in answers) == {503: 2, 0: 8}
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        await engine.close()

    asyncio.run(scenario())
