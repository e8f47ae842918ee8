"""Slow answers that a client with a read time-out of one second waits for, and streams that break."""

from __future__ import annotations

import asyncio
from typing import Any

import cerebras.cloud.sdk
import fireworks
import httpx
import openai
import pytest
import together

from support import PATHS, SCENARIOS

ASYNC: dict[str, Any] = {
    "openai": openai.AsyncOpenAI,
    "novita": openai.AsyncOpenAI,
    "together": together.AsyncTogether,
    "cerebras": cerebras.cloud.sdk.AsyncCerebras,
    "fireworks": fireworks.AsyncFireworks,
}
SYNC: dict[str, Any] = {
    "openai": openai.OpenAI,
    "novita": openai.OpenAI,
    "together": together.Together,
    "cerebras": cerebras.cloud.sdk.Cerebras,
    "fireworks": fireworks.Fireworks,
}
ASKED: dict[str, Any] = {"model": "scripted", "prompt": "a", "max_tokens": 2}


def test_comments_and_white_space_keep_a_client_waiting() -> None:
    """A token takes 1.4 s, a client gives up after 1 s of silence. All at once, as it takes its time."""

    async def ask(provider: str, stream: bool) -> str:
        base = f"{SCENARIOS}/slow{PATHS[provider]}"
        async with ASYNC[provider](base_url=base, api_key="x", max_retries=0, timeout=1.0) as client:
            answer = await client.completions.create(**ASKED, stream=stream)
            return "".join([chunk.choices[0].text async for chunk in answer]) if stream else answer.choices[0].text

    async def all_() -> dict[tuple[str, bool], str]:
        cases = [(provider, stream) for provider in ASYNC for stream in (False, True)]
        return dict(zip(cases, await asyncio.gather(*(ask(*case) for case in cases)), strict=True))

    assert set(asyncio.run(all_()).values()) == {" the cat"}


BROKEN: dict[str, tuple[type[Exception], ...]] = {
    "openai": (openai.APIError,),
    "novita": (openai.APIError,),
    "together": (together.APIError,),
    "cerebras": (cerebras.cloud.sdk.InternalServerError,),
    # Its SDK does not know the frame; what it raises on is that the body has no end.
    "fireworks": (httpx.RemoteProtocolError, fireworks.APIError),
}


@pytest.mark.parametrize("scenario", ["breaks", "breaks-slowly"])
@pytest.mark.parametrize("provider", SYNC)
def test_a_stream_that_breaks_raises_after_the_text_that_came(provider: str, scenario: str) -> None:
    seen: list[str] = []
    base = f"{SCENARIOS}/{scenario}{PATHS[provider]}"
    with SYNC[provider](base_url=base, api_key="x", max_retries=0) as client:
        stream = client.completions.create(model="scripted", prompt="a", max_tokens=6, stream=True)
        with pytest.raises(BROKEN[provider]) as caught:
            seen.extend(chunk.choices[0].text for chunk in stream)
    assert "".join(seen) == " the cat"
    if provider != "fireworks":
        assert "The engine failed" in str(caught.value)


def test_fireworks_last_chunk_says_error_too() -> None:
    """For users of its SDK who look at ``finish_reason``."""
    reasons: list[Any] = []
    with (
        fireworks.Fireworks(base_url=f"{SCENARIOS}/breaks/fireworks/inference", api_key="x", max_retries=0) as client,
        pytest.raises(BROKEN["fireworks"]),
    ):
        for chunk in client.completions.create(model="scripted", prompt="a", max_tokens=6, stream=True):
            reasons += [choice.finish_reason for choice in chunk.choices]
    assert reasons[-1] == "error"
