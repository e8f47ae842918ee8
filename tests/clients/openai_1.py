"""OpenAI's SDK 1.109.1, strict where its types are right: its streams' chunks have ``finish_reason`` null, which it types as a string."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from support import PATHS, SCENARIOS, TOY, attempts

BASE = TOY + PATHS["openai"]
PAGE: dict[str, Any] = {"model": "toy", "prompt": "Say this is a test", "max_tokens": 7, "temperature": 0}


def client(base: str = BASE, strict: bool = True, retries: int = 0) -> OpenAI:
    return OpenAI(base_url=base, api_key="local", max_retries=retries, _strict_response_validation=strict)


@pytest.mark.parametrize("provider", ["openai", "novita"])
def test_the_page(provider: str) -> None:
    base = TOY + PATHS[provider]
    whole = client(base).completions.create(**PAGE)
    chunks = list(client(base, strict=False).completions.create(**PAGE, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    with pytest.raises(openai.APIResponseValidationError) as caught:
        list(client(base).completions.create(**PAGE, stream=True))
    assert "finish_reason" in str(caught.value.__cause__)


def test_the_page_async() -> None:
    async def go() -> tuple[str, str]:
        async with AsyncOpenAI(base_url=BASE, api_key="local") as made:
            whole = await made.completions.create(**PAGE)
            stream = await made.completions.create(**PAGE, stream=True)
            return whole.choices[0].text, "".join([chunk.choices[0].text async for chunk in stream])

    whole, streamed = asyncio.run(go())
    assert whole == streamed


def test_arrays_logprobs_stop_seed_and_n() -> None:
    asked: dict[str, Any] = {"model": "toy", "prompt": [[72, 105], [72]], "n": 2, "max_tokens": 30, "logprobs": 5, "stop": ["e"], "seed": 3}
    whole = client().completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert not any("e" in choice.text for choice in whole.choices)
    texts = [""] * 4
    for chunk in client(strict=False).completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_echo_and_usage() -> None:
    lists = client(strict=False).completions.create(model="toy", prompt="Hi", echo=True, logprobs=1, max_tokens=0).choices[0].logprobs
    assert lists is not None
    assert lists.tokens == ["H", "i"]
    stream = client(strict=False).completions.create(**PAGE, stream=True, stream_options={"include_usage": True})
    *others, last = list(stream)
    assert (last.choices, {chunk.usage for chunk in others}) == ([], {None})
    assert last.usage is not None
    assert last.usage.total_tokens == 18 + 7


@pytest.mark.parametrize(
    ("scenario", "fields", "kind", "tries"),
    [
        ("sound", {"max_tokens": -1}, openai.BadRequestError, 1),
        ("sound", {"model": "another"}, openai.NotFoundError, 1),
        ("keyed", {}, openai.AuthenticationError, 1),
        ("limited", {}, openai.RateLimitError, 3),
        ("full", {}, openai.InternalServerError, 3),
        ("late", {}, openai.InternalServerError, 1),
    ],
)
def test_errors(scenario: str, fields: dict[str, Any], kind: type[Exception], tries: int) -> None:
    attempts(scenario)
    with pytest.raises(kind):
        client(f"{SCENARIOS}/{scenario}/openai/v1", retries=2).completions.create(**{"model": "scripted", "prompt": "a", **fields})
    assert attempts(scenario) == tries


def test_a_stream_that_breaks_raises() -> None:
    seen: list[str] = []
    made = client(f"{SCENARIOS}/breaks/openai/v1", strict=False)
    stream = made.completions.create(model="scripted", prompt="a", max_tokens=6, stream=True)
    with pytest.raises(openai.APIError, match="The engine failed"):
        seen.extend(chunk.choices[0].text for chunk in stream)
    assert "".join(seen) == " the cat"
