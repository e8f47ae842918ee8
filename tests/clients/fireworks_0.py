"""Fireworks' SDK 0.19.20 with ``FIREWORKS_API_STRICT=1``, which forbids every field that its models do not have."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import fireworks.client.error
import httpx
import pydantic
import pytest
from fireworks.client import AsyncFireworks, Fireworks

from support import SCENARIOS, TOY, served

assert os.environ["FIREWORKS_API_STRICT"] == "1"
BASE = f"{TOY}/fireworks/inference/v1"

ASKS: dict[str, dict[str, Any]] = {
    "the page": {
        "prompt": "The sky is", "max_tokens": 16, "echo_last": 1, "temperature": 1, "top_p": 1, "top_k": 50, "n": 1, "ignore_eos": False,
        "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "mirostat_target": 123, "mirostat_lr": 0.1,
        "context_length_exceeded_behavior": "truncate", "logprobs": True, "echo": False, "min_p": 0, "typical_p": 1, "user": "<string>",
    },
    "plain": {"prompt": "Once", "max_tokens": 6},
    "arrays": {"prompt": ["Hi", "Ho"], "n": 2, "max_tokens": 6},
    "ids": {"prompt": [72, 105], "max_tokens": 6},
    "lists": {"prompt": "Once", "max_tokens": 6, "logprobs": 5},
    "echo with lists": {"prompt": "Once", "max_tokens": 6, "logprobs": 2, "echo": True},
    "echo with content": {"prompt": "Once", "max_tokens": 6, "logprobs": True, "top_logprobs": 2, "echo": True},
    "metrics": {"prompt": "Once", "max_tokens": 6, "perf_metrics_in_response": True},
    "stop": {"prompt": "Once", "max_tokens": 60, "stop": ["e", " "]},
}  # fmt: skip


def fields(name: str) -> dict[str, Any]:
    return {"model": "toy", "seed": 3, **served("fireworks", ASKS[name])}


def folded(chunks: list[Any], count: int) -> list[str]:
    texts = [""] * count
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    return texts


@pytest.mark.parametrize("name", ASKS)
def test_its_models_take_the_answer_and_every_chunk(name: str) -> None:
    client = Fireworks(base_url=BASE, api_key="local")
    whole = client.completions.create(**fields(name))
    chunks = list(client.completions.create(**fields(name), stream=True))
    assert folded(chunks, len(whole.choices)) == [choice.text for choice in whole.choices]
    assert whole.usage == chunks[-1].usage


@pytest.mark.parametrize("name", ASKS)
def test_the_same_async(name: str) -> None:
    async def go() -> tuple[Any, list[Any]]:
        client = AsyncFireworks(base_url=BASE, api_key="local")
        whole = await client.completions.acreate(**fields(name), stream=False)
        return whole, [chunk async for chunk in client.completions.acreate(**fields(name), stream=True)]

    whole, chunks = asyncio.run(go())
    assert folded(chunks, len(whole.choices)) == [choice.text for choice in whole.choices]


def test_its_union_of_logprobs_finds_the_right_one() -> None:
    """A null in the lists would make it fall through to an empty object of the other kind."""
    client = Fireworks(base_url=BASE, api_key="local")
    lists = client.completions.create(**fields("echo with lists")).choices[0].logprobs
    assert lists.token_logprobs[0] == 0.0
    assert "".join(lists.tokens[:4]) == "Once"
    content = client.completions.create(**fields("echo with content")).choices[0].logprobs.content
    assert "".join(entry.token for entry in content[:4]) == "Once"
    assert [entry.logprob for entry in content] == lists.token_logprobs


@pytest.mark.parametrize(
    ("scenario", "asked", "kind"),
    [
        ("sound", {"max_tokens": -1}, "InvalidRequestError"),
        ("sound", {"model": "another"}, "InvalidRequestError"),
        ("keyed", {}, "AuthenticationError"),
        ("limited", {}, "RateLimitError"),
        ("buggy", {}, "InternalServerError"),
        ("full", {}, "ServiceUnavailableError"),
        ("sluggish", {}, "APITimeoutError"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors(scenario: str, asked: dict[str, Any], kind: str, stream: bool) -> None:
    client = Fireworks(base_url=f"{SCENARIOS}/{scenario}/fireworks/inference/v1", api_key="x")
    with pytest.raises(Exception) as caught:
        answer = client.completions.create(**{"model": "scripted", "prompt": "a", **asked}, stream=stream)
        list(answer if stream else [])
    assert type(caught.value).__name__ == kind
    assert isinstance(caught.value, fireworks.client.error.FireworksError)


def test_a_stream_that_breaks_raises() -> None:
    """Strict, it does not take the error frame; otherwise it would raise on the body that has no end."""
    seen: list[str] = []
    client = Fireworks(base_url=f"{SCENARIOS}/breaks/fireworks/inference/v1", api_key="x")
    with pytest.raises((pydantic.ValidationError, httpx.RemoteProtocolError)):
        seen.extend(
            choice.text
            for chunk in client.completions.create(model="scripted", prompt="a", max_tokens=6, stream=True)
            for choice in chunk.choices
        )
    assert "".join(seen) == " the cat"
