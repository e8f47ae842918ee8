"""Every golden's request, sent to the bundled model: an answer of the golden's structure, whatever the model says."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.backends.contract.conftest import ready
from tests.server.asgi import SOURCE, Answer, acall
from tests.server.goldens import TOY, choices, chunks, recorded, sent, slices_right
from tests.server.one import create_app
from tests.server.toy import MODEL
from tests.support.loading import native_loader
from tests.support.preparing import preparer_of

from quintet.backends.base import Backend
from quintet.backends.native.front.engine import Engine
from quintet.config import EngineConfig, ServerConfig
from quintet.dialects.catalog import PROVIDERS
from quintet.server.asgi import ASGIApp

CONTEXT = 128
"""Small, since some requests generate to its end."""

FINISH = {name: {None, "stop", "length", *(["eos"] if name == "together" else [])} for name in PROVIDERS}

OWN = {
    *("content-length", "fireworks-prompt-tokens", "fireworks-cached-prompt-tokens", "fireworks-num-concurrent-requests"),
    *("fireworks-speculation-generated-tokens", "fireworks-speculation-acceptance", "fireworks-speculation-prompt-tokens"),
    "fireworks-speculation-prompt-matched-tokens",
}
"""Headers with another value for another model, or with other requests beside."""


def apps(engine: Backend) -> dict[str, ASGIApp]:
    """The same engine in every dialect."""
    return {name: create_app(engine, ServerConfig(dialect=name), (MODEL,), source=SOURCE, keep_alive=3600) for name in PROVIDERS}


async def prompt_tokens(engine: Backend, body: bytes) -> int:
    """Of all prompts of a request."""
    prompt = json.loads(body).get("prompt") or ""
    one = isinstance(prompt, str) or isinstance(prompt[0], int | float)
    lengths = [
        len(await preparer_of(engine).tokenize(text, True) if isinstance(text, str) else text) for text in ([prompt] if one else prompt)
    ]
    return sum(length or 1 for length in lengths)  # an empty one is the token that separates documents


async def all_answers(engine: Backend) -> dict[str, tuple[Answer, int]]:
    """Each golden's answer, and how many tokens its prompts have where it is a good one. Many are sent at once."""
    at_once, served = asyncio.Semaphore(32), apps(engine)

    async def one(name: str) -> tuple[Answer, int]:
        async with at_once:
            answer = await acall(served[name.split("/")[0]], sent(name))
        return answer, await prompt_tokens(engine, sent(name)) if answer.status == 200 else 0

    return dict(zip(TOY, await asyncio.gather(*map(one, TOY)), strict=True))


@pytest.fixture(scope="module")
def answers(model_path: Path) -> dict[str, tuple[Answer, int]]:
    async def run() -> dict[str, tuple[Answer, int]]:
        load = native_loader(model_path, threads=2, context=CONTEXT)
        async with ready(Engine(load, EngineConfig(kv_bytes=256 << 20), clock=lambda: 0.0)) as engine:
            return await all_answers(engine)

    return asyncio.run(run())


def bodies(answer: Answer) -> list[Any]:
    """The JSON texts of an answer."""
    return [answer.json()] if answer.header("content-type") == "application/json" else chunks(answer.body)


def structure(value: Any, path: str = "") -> set[tuple[str, str]]:
    """The type at every path. Keys that are tokens are one path, and so are the items of an array."""
    if isinstance(value, dict):
        members = [(path + ("{}" if re.search(r"top_logprobs(\[\])?$", path) else f".{key}"), one) for key, one in value.items()]
        return {(path, "object"), *(found for where, one in members for found in structure(one, where))}
    if isinstance(value, list):
        return {(path, "array"), *(found for one in value for found in structure(one, f"{path}[]"))}
    return {(path, "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__)}


@pytest.mark.parametrize("name", TOY)
def test_the_answer_has_the_goldens_structure(answers: dict[str, tuple[Answer, int]], name: str, model_path: Path) -> None:
    got, expected = answers[name][0], recorded(name)
    assert got.status == expected.status, got.body
    heads = [[(key, "" if key in OWN else value) for key, value in one.headers] for one in (got, expected)]
    assert heads[0] == heads[1]
    if expected.status == 200:
        made, wanted = structure(bodies(got)), structure(bodies(expected))
        assert made <= wanted  # the model need not say what the golden stops at
        assert made == wanted or json.loads(sent(name)).get("stop")
    else:  # but for the model's own name and numbers, an error is the same
        texts = [re.sub(r"\d+", "0", one.body.decode().replace(model_path.stem, "toy")) for one in (got, expected)]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("name", [name for name in TOY if recorded(name).status == 200])
def test_finish_reasons_usage_and_offsets_are_right(answers: dict[str, tuple[Answer, int]], name: str) -> None:
    (got, prompts), asked = answers[name], json.loads(sent(name))
    found = choices(got)
    assert {choice["finish_reason"] for choice in found if "finish_reason" in choice} <= FINISH[name.split("/")[0]]
    slices_right(name, got)
    usage = next((body["usage"] for body in bodies(got) if body.get("usage")), None)
    if usage is None:
        assert asked["stream"]
        return
    assert usage["prompt_tokens"] == prompts
    assert usage["total_tokens"] == prompts + usage["completion_tokens"]
    ends = [choice["finish_reason"] for choice in found if choice.get("finish_reason")]
    most = asked.get("max_tokens")
    if most is not None and set(ends) == {"length"} and (asked.get("best_of") or 1) <= (asked.get("n") or 1):
        assert usage["completion_tokens"] == len(ends) * most
