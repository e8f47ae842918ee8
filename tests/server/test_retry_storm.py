"""Clients that give up before they are answered and ask again, five times each: the server goes on with what somebody waits for."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from tests.backends.contract.conftest import ready
from tests.server.asgi import JSON, Answer, acall
from tests.server.one import create_app

from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import EOS, toy_loader
from quintet.config import EngineConfig, ServerConfig

CLIENTS, TRIES = 40, 5
LONG, SHORT = 3500, 60
"""Tokens: more than an impatient client waits for, and what a patient one wants."""


def body(name: str, max_tokens: int) -> dict[str, object]:
    return {"prompt": name, "max_tokens": max_tokens, "logit_bias": {str(EOS): -100}, "seed": 1}


@pytest.mark.fault("E10")
@pytest.mark.parametrize("stream", [False, True])
def test_work_that_nobody_waits_for_is_dropped_and_the_patient_are_answered(stream: bool) -> None:
    """What the storm costs is what was computed while its clients were there: nothing of theirs runs on, and nothing is left of it."""

    async def scenario() -> None:
        async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=4 << 20, max_running=16, max_waiting=64))) as engine:
            app = create_app(engine, ServerConfig(api_keys=("sk-storm", "sk-patient")), ("toy",))
            rng = random.Random(7)

            async def post(key: str, name: str, tokens: int, leave_after: float | None = None) -> Answer:
                headers = [*JSON, ("authorization", f"Bearer {key}")]
                return await acall(app, {**body(name, tokens), "stream": stream}, headers=headers, leave_after=leave_after)

            async def impatient(number: int) -> list[Answer]:
                """Asks again at once."""
                waits = [rng.uniform(0.0, 0.05) for _ in range(TRIES)]
                return [await post("sk-storm", f"storm {number}", LONG, wait) for wait in waits]

            alone = [await post("sk-patient", f"patient {number}", SHORT) for number in range(10)]
            storm = [asyncio.create_task(impatient(number)) for number in range(CLIENTS)]
            among = [await post("sk-patient", f"patient {number}", SHORT) for number in range(10)]
            tries = [answer for answers in await asyncio.gather(*storm) for answer in answers]
            while engine.live:
                await asyncio.sleep(0.001)
            assert [answer.status for answer in among] == [200] * 10
            assert [text(answer, stream) for answer in among] == [text(answer, stream) for answer in alone]
            assert {answer.status for answer in tries} <= {0, 200, 429, 503}
            refused = [answer for answer in tries if answer.status in (429, 503)]
            assert all(answer.header("retry-after") for answer in refused)
            left = sum(not answer.complete for answer in tries)
            assert left > len(tries) // 2, "most gave up, or this is no storm"
            health = engine.health()
            assert health.counts.tokens < left * LONG // 2, "of what nobody waited for, most was never computed"
            assert (health.running, health.waiting, health.pages.used) == (0, 0, 0)

    asyncio.run(scenario())


def text(answer: Answer, stream: bool) -> list[str]:
    if not stream:
        return [answer.json()["choices"][0]["text"]]
    frames = [line.removeprefix(b"data: ") for line in answer.body.split(b"\n\n") if line.startswith(b"data: {")]
    return ["".join(choice["text"] for frame in frames for choice in json.loads(frame)["choices"])]
