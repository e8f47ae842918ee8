"""Same request, same bytes, of servers that differ in how they compute; 2,000 requests each in ``make test-repeats``."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from random import Random

import httpx2
import pytest
from tests.e2e.random_requests import PATHS, in_short, joined, random_request, without_what_varies
from tests.e2e.test_serve_command import served
from tests.support.bundled import bundled_path

from quintet.backends.native.core.cpu import isas

REQUESTS = 2000 if int(os.environ.get("QUINTET_TEST_REPEATS", "0")) >= 100 else 40
SEED = int(os.environ.get("QUINTET_REPEATS_SEED", "1"))

ALONE = ("--speculation", "off", "--threads", "1")
"""One request at a time, and nothing drafted."""

Request = tuple[str, dict[str, object]]
Answer = tuple[int, object]


async def ask(client: httpx2.AsyncClient, dialect: str, body: dict[str, object]) -> Answer:
    answer = await client.post(PATHS[dialect], json={"model": "m", **body})
    streamed = "event-stream" in answer.headers.get("content-type", "")
    return answer.status_code, joined(answer.text) if streamed else without_what_varies(answer.json())


async def ask_all(url: str, requests: list[Request], at_once: int, rng: Random) -> list[Answer]:
    """In a random order if many go at once."""
    answers: list[Answer] = [(0, None)] * len(requests)
    places = asyncio.Semaphore(at_once)
    async with httpx2.AsyncClient(base_url=url, timeout=600, limits=httpx2.Limits(max_connections=at_once)) as client:

        async def one(at: int) -> None:
            async with places:
                answers[at] = await ask(client, *requests[at])

        order = list(range(len(requests)))
        if at_once > 1:
            rng.shuffle(order)
        await asyncio.gather(*(one(at) for at in order))
    return answers


@pytest.mark.fault("H02", "H04")
@pytest.mark.parametrize(("kv_type", "drafting"), [("f16", False), ("q8", True)])
def test_answers_depend_on_nothing_that_a_server_is_configured_with_but_the_model(kv_type: str, drafting: bool, tmp_path: Path) -> None:
    """Alone on one thread; and 24 at once on all, with few pages, prefixes out of files, drafts, and other kernels where there are."""
    rng = Random(f"{SEED} {kv_type}")
    requests = [random_request(rng, 80 if REQUESTS > 1000 else 24) for _ in range(REQUESTS)]
    model = (str(bundled_path()), "--served-model-name", "m", "--kv-type", kv_type, "--no-batches")
    kernels = [isa for isa in isas()[1:] if isa != "portable"]
    with served(*model, *ALONE) as one:
        expected = asyncio.run(ask_all(one.url, requests, 1, rng))
    crowded = ("--kv-cache", "16MiB", "--prefix-cache-dir", str(tmp_path), *(("--draft", str(bundled_path())) if drafting else ()))
    with served(*model, *crowded, **({"QUINTET_ISA": kernels[0]} if kernels else {})) as other:
        found = asyncio.run(ask_all(other.url, requests, 24, rng))
        again = asyncio.run(ask_all(other.url, requests[: REQUESTS // 5], 8, rng))  # of what it has computed before
    counted = Counter(status for status, _ in expected)
    assert counted[200] > 0.9 * REQUESTS, counted
    different = [at for at in range(REQUESTS) if found[at] != expected[at]] + [at for at, one in enumerate(again) if one != expected[at]]
    assert not different, in_short(requests[at] for at in different[:5])
