"""Clients that leave at random moments, over HTTP: nothing of their work stays. ``make test-cancels`` does it 1,000 times."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.e2e.test_serve_command import PATIENCE_S, Served, served
from tests.e2e.test_serve_process import engine_of
from tests.support.bundled import bundled_path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CANCELS = int(os.environ.get("QUINTET_TEST_CANCELS", "100"))
TOGETHER = 10  # clients at once
WORDS = ["the", "engine", "of", "a", "small", "server", "computes", "the", "pages", "of", "a", "long", "story", "about"]
IDLE = {"vllm:num_requests_running": 0.0, "vllm:num_requests_waiting": 0.0, "vllm:kv_cache_usage_perc": 0.0}
SAME = {"prompt": "The sky is", "max_tokens": 12, "seed": 3, "temperature": 1.0, "logprobs": 2}


def body(rng: random.Random) -> bytes:
    """Streams, JSON, samples, scores of a long prompt, JSON that a guide makes: all of them long."""
    prompt = " ".join(rng.choices(WORDS, k=rng.choice((3, 60, 250))))
    asked: dict[str, object] = {"prompt": prompt, "max_tokens": 1500, "temperature": 1.0, "seed": rng.randrange(1000)}
    asked |= rng.choice(
        (
            {"stream": True},
            {"stream": True, "n": 4},
            {"n": 3, "logprobs": 3},
            {"echo": True, "logprobs": 5, "stream": True},
            {"best_of": 4},
            {"stream": True, "prompt": [prompt, prompt, "other"]},
            {"response_format": {"type": "json_object"}, "max_tokens": 800},
        )
    )
    return json.dumps(asked).encode()


async def leaves(one: Served, rng: random.Random) -> None:
    """A client that closes its connection, or cuts it, sooner or later."""
    host, port = one.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = body(rng)
    path = "/fireworks/inference/v1/completions" if b"response_format" in content else "/v1/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    sent = head.encode() + content
    writer.write(sent)
    if b'"stream"' in content and rng.random() < 0.5:
        await reader.read(1)  # in the middle of what comes
    await asyncio.sleep(rng.choice((0, 0.001, 0.005, 0.02, 0.1)))
    if rng.random() < 0.5:
        writer.transport.abort()
    else:
        writer.close()


def load(one: Served) -> dict[str, float]:
    """How much the engine has to do and holds."""
    with urllib.request.urlopen(f"{one.url}/metrics", timeout=PATIENCE_S) as reply:
        text = reply.read().decode()
    return {name: float(re.search(rf"^{name}{{.*}} (.*)$", text, re.MULTILINE)[1]) for name in IDLE}  # type: ignore[index]


def until_idle(one: Served) -> float:
    """Seconds until nothing is left."""
    begin = time.monotonic()
    while load(one) != IDLE:
        assert time.monotonic() - begin < PATIENCE_S, "work of clients that left goes on"
        time.sleep(0.001)
    return time.monotonic() - begin


async def together(one: Served, rng: random.Random) -> None:
    await asyncio.gather(*(leaves(one, rng) for _ in range(TOGETHER)))


@pytest.mark.fault("E06")
@pytest.mark.parametrize("model", ["toy", "bundled"])
def test_clients_that_leave_at_random_moments_leave_no_page_and_no_work_behind(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The time is printed, for a test machine may be busy."""
    rng = random.Random(4)
    cancels = CANCELS if model == "toy" else CANCELS // 5
    with served("--toy" if model == "toy" else str(bundled_path()), "--log-level", "warning") as one:
        engine, expected = engine_of(one), json.loads(one.post(SAME)[1])["choices"]
        times = []
        for _ in range(0, cancels, TOGETHER):
            asyncio.run(together(one, rng))
            times.append(until_idle(one))
        assert json.loads(one.post(SAME)[1])["choices"] == expected
        until_idle(one)
        assert Path(f"/proc/{engine}").exists(), "it was never started again"
    with capsys.disabled():
        print(f" {model}: {cancels} clients left, the engine idle at most {max(times) * 1000:.0f} ms after the last of {TOGETHER}", end="")
