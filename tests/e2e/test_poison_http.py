"""Requests that break the engine's step, or whose logits are not numbers, over HTTP: each gets its dialect's 500, and its neighbours what
they get without it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
import pytest
from tests.e2e.test_sampling_http import Target, served

from quintet.backends.native.core.loader import Loaded, Loader
from quintet.backends.native.core.types import F32, U8, Batch, Meanwhile
from quintet.backends.toy import EOS, ToyRunner, ToyTokenizer
from quintet.inputs.tokenizer import Tokenizer

MIROSTAT = {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.5}
DIALECTS = ("openai", "fireworks", "together", "cerebras", "novita")


class Poisonable(ToyRunner):
    """Breaks after it has computed a batch with a ``~``; gives no numbers after a ``^``."""

    def forward(self, batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
        hidden = super().forward(batch, meanwhile)
        if (batch.tokens == ord("~")).any():
            raise RuntimeError("secret")
        return hidden

    def logits(self, rows: U8) -> F32:
        logits = super().logits(rows)
        logits[rows[:, 8] == ord("^")] = np.nan
        return logits


def poisonable() -> Loader[Tokenizer]:
    def load(progress: Callable[[float], None]) -> Loaded[Tokenizer]:
        return Loaded(runner=Poisonable(), tokenizer=ToyTokenizer(), name="toy", fingerprint="fp_toy_1")

    return load


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    yield from served(poisonable, lambda _: EOS)


def post(target: Target, dialect: str, prompt: str, **more: Any) -> httpx2.Response:
    body = {"model": "m", "prompt": prompt, "max_tokens": 60, "temperature": 0.8, "logprobs": 2, **more}
    if dialect != "together":
        body["seed"] = 5
    return httpx2.post(f"{target.url}/{dialect}/v1/completions", json=body, timeout=120)


def choices(answer: httpx2.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


@pytest.mark.fault("C06", "C09")
@pytest.mark.parametrize("poison", ["~", "^"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_guilty_gets_a_500_and_its_neighbours_are_as_without_it(target: Target, dialect: str, poison: str) -> None:
    prompts = [f"neighbour {at}: " for at in range(6)]

    def neighbour(prompt: str) -> Any:
        more = MIROSTAT if prompts.index(prompt) % 2 else {}
        return choices(post(target, "openai", prompt, n=2, max_tokens=80, **more))

    alone = [neighbour(prompt) for prompt in prompts]
    with ThreadPoolExecutor(9) as pool:
        beside = [pool.submit(neighbour, prompt) for prompt in prompts]
        guilty = [pool.submit(post, target, dialect, f"bad {at}{poison}") for at in range(3)]
        assert [one.result() for one in beside] == alone
        for answer in (one.result() for one in guilty):
            assert answer.status_code == 500 and "secret" not in answer.text and "NaN" not in answer.text
            assert json.loads(answer.text, parse_constant=pytest.fail)
    stream = post(target, dialect, f"bad{poison}", stream=True)
    assert stream.status_code == 500 or "error" in stream.text
    assert neighbour(prompts[0]) == alone[0]
