"""A poor engine behind the server: what it lacks is a 400 that names the field, in every dialect, and nothing else is any different."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.backends.contract.conftest import ready
from tests.server.asgi import SOURCE, Answer, acall
from tests.server.one import create_app
from tests.support.poor import MOST, POOR, PoorEngine

from quintet.backends.base import Backend
from quintet.backends.native.core.loader import Loaded
from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import ToyRunner, ToyTokenizer
from quintet.config import EngineConfig, ServerConfig
from quintet.inputs.capabilities import Feature, Supported
from quintet.models.traits import Fim, ThinkTags, Traits
from quintet.server.asgi import ASGIApp

DIALECTS = ("openai", "fireworks", "together", "cerebras", "novita")
PLAIN = {"prompt": "Once upon", "max_tokens": 6, "temperature": 0.7, "top_p": 0.9}
NOTHING = replace(POOR, features=frozenset())

EVERYWHERE: dict[str, object] = {
    **{"seed": 5, "logprobs": MOST + 1, "top_k": 3, "min_p": 0.1, "typical_p": 0.5, "top_n_sigma": 1.0, "xtc_probability": 0.5},
    **{"repetition_penalty": 1.1, "frequency_penalty": 0.5, "presence_penalty": 0.5, "logit_bias": {"5": 1}, "dry_multiplier": 0.8},
    **{"min_tokens": 2, "ignore_eos": True, "stop_token_ids": [5], "allowed_token_ids": [5, 6], "bad_words": ["x"]},
}
"""A field of every dialect, as a provider's own or as an extension -> a value that turns it on."""

OWN: list[tuple[str, Mapping[str, object], str]] = [
    *[(dialect, {"mirostat": 2}, "mirostat") for dialect in DIALECTS if dialect != "fireworks"],
    ("fireworks", {"mirostat_target": 5.0}, "mirostat_target"),
    *[(dialect, {"thinking_token_budget": 4}, "thinking_token_budget") for dialect in DIALECTS if dialect != "fireworks"],
    ("fireworks", {"reasoning_effort": 4}, "reasoning_effort"),
    *[(dialect, {"echo": True, "logprobs": 1}, "echo") for dialect in ("openai", "fireworks", "together", "cerebras")],
    ("fireworks", {"echo_last": 1, "logprobs": 1}, "echo_last"),
    ("fireworks", {"response_format": {"type": "json_object"}}, "response_format"),
    ("cerebras", {"grammar_root": "root"}, "grammar_root"),
    ("openai", {"suffix": " end"}, "suffix"),
]
"""What only some dialects have."""


class Thinker(ToyTokenizer):
    """One that thinks and fills in the middle, so that only the engine is in the way."""

    def __init__(self) -> None:
        self.traits = Traits(fim=Fim(1, 2, 3), think=ThinkTags("<t>", "</t>"))


@asynccontextmanager
async def serving(supported: Supported | None = POOR) -> AsyncIterator[dict[str, ASGIApp]]:
    """The server in each dialect; ``None`` = with all that the toy has."""
    config = EngineConfig(kv_bytes=1 << 22, speculation=False)
    engine: Backend = Engine(lambda _: Loaded(ToyRunner(), Thinker(), name="toy", fingerprint="f"), config, clock=lambda: 0.0)
    async with ready(engine if supported is None else PoorEngine(engine, supported)) as backend:
        yield {name: create_app(backend, ServerConfig(dialect=name), source=SOURCE) for name in DIALECTS}


def ask(dialect: str, *bodies: dict[str, Any], supported: Supported | None = POOR, path: str = "/v1/completions") -> list[Answer]:
    async def go() -> list[Answer]:
        async with serving(supported) as apps:
            return [await acall(apps[dialect], body, path=path) for body in bodies]

    return asyncio.run(go())


def named(answer: Answer, param: str) -> None:
    """A 400 whose message begins with the field."""
    assert answer.status == 400, answer.body
    assert f"'{param}' ".encode() in answer.body, answer.body


@pytest.mark.fault("H09")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_control_that_it_lacks_is_a_400_that_names_the_field(dialect: str) -> None:
    bodies = {name: {**PLAIN, name: value} for name, value in EVERYWHERE.items()}
    for name, answer in zip(bodies, ask(dialect, *bodies.values()), strict=True):
        named(answer, name)


@pytest.mark.parametrize(("dialect", "fields", "param"), OWN)
def test_what_one_dialect_has_is_named_as_it_is_called_there(dialect: str, fields: Mapping[str, object], param: str) -> None:
    (answer,) = ask(dialect, {**PLAIN, **fields})
    named(answer, param)


@pytest.mark.fault("H09")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_nothing_else_is_any_different(dialect: str) -> None:
    off = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "typical_p": 1, "min_tokens": 0, "logit_bias": {}}
    bodies = [PLAIN, {**PLAIN, "stream": True}, {**PLAIN, **off}, {**PLAIN, "logprobs": 1}, {**PLAIN, "stop": ["e"], "n": 2}]
    poor, rich = ask(dialect, *bodies), ask(dialect, *bodies, supported=None)
    assert [answer.status for answer in poor] == [200] * len(bodies)
    assert [answer.body for answer in poor] == [answer.body for answer in rich]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_without_log_probabilities_what_rests_on_them_is_refused_and_plain_text_is_not(dialect: str) -> None:
    plain, scores, prompt, beams, ranked, stream = ask(
        dialect,
        PLAIN,
        {**PLAIN, "logprobs": 1},
        {**PLAIN, "prompt_logprobs": 1},
        {"prompt": "a", "max_tokens": 2, "use_beam_search": True},
        {**PLAIN, "best_of": 2},
        {**PLAIN, "stream": True},
        supported=NOTHING,
    )
    assert plain.status == 200
    named(scores, "logprobs")
    named(prompt, "prompt_logprobs")
    named(beams, "use_beam_search")
    if dialect in ("openai", "cerebras", "novita"):
        named(ranked, "best_of")
    if dialect == "together":  # each of its chunks has a token's
        named(stream, "stream")
    else:
        assert stream.status == 200


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_prompts_log_probabilities_are_refused_by_the_field_that_asks_for_them(dialect: str) -> None:
    scored = {**PLAIN, "prompt_logprobs": 1}
    for answer in ask(dialect, scored, {**scored, "logprobs": 1}):
        named(answer, "prompt_logprobs")
    most = {**PLAIN, "prompt_logprobs": MOST + 1}
    few = replace(POOR, features=frozenset(Feature))
    alone, beside, others = ask(dialect, most, {**most, "logprobs": 1}, {**scored, "logprobs": MOST + 1}, supported=few)
    named(alone, "prompt_logprobs")
    named(beside, "prompt_logprobs")
    named(others, "logprobs")


def test_mistrals_route_names_the_seed_as_it_is_called_there() -> None:
    (lacking,) = ask("openai", {"prompt": "a", "temperature": 0.7, "random_seed": 5}, path="/v1/fim/completions")
    named(lacking, "random_seed")
    assert lacking.json()["param"] == "random_seed"


def test_infill_says_which_control_stands_in_its_way_and_needs_tokens_to_end_at() -> None:
    gap = {"input_prefix": "a", "input_suffix": "b", "n_predict": 4}
    (lacking,) = ask("openai", gap, path="/infill")
    assert lacking.status == 501
    assert "its engine does not end at given tokens" in json.loads(lacking.body)["error"]["message"]
