"""Over HTTP, on tiny models with random weights: a draft model changes no answer, whoever it is and whatever runs beside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Type
from tests.backends.contract.conftest import ready
from tests.reference.tiny_model import TinySpec
from tests.server.asgi import SOURCE, acall
from tests.server.one import create_app
from tests.support.loading import native_loader

from quintet.backends.base import Counts
from quintet.backends.native.draft import columns
from quintet.backends.native.draft.policy import Policy
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.worker.aside import Aside
from quintet.config import EngineConfig, ServerConfig

SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}, "tag": {"enum": ["ab", "cd"]}}, "required": ["id", "tag"]}
TARGET = TinySpec("drafted-for", layers=3, types=(Type.Q4_0,), thinks=True)
DRAFTS = {
    "itself": TARGET,  # nothing of it takes more than 4 bits, so as a draft model it is the same
    "another": TinySpec("drafter", layers=1, hidden=96, heads=3, types=(Type.F16, Type.Q8_0), seed=2, thinks=True),
    "padded": TinySpec("padded-drafter", "qwen2", layers=1, hidden=128, heads=4, vocab=301, types=(Type.Q5_1,), seed=3),
}
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1, "top_p": 0.9, "top_k": 40},
    "hot": {"temperature": 1.7, "min_p": 0.02},
    "penalties": {"frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.2},
    "mirostat": {"mirostat_target": 4.0},
    "log-probabilities": {"temperature": 0.6, "logprobs": 4},
    "echo": {"echo": True, "logprobs": 2, "prompt": "all that was said, " * 6},
    "many": {"n": 3, "temperature": 0.8},
    "best": {"n": 2, "best_of": 4, "temperature": 1, "max_tokens": 20},
    "stop": {"stop": ["e", "th", "\n"], "temperature": 0.9},
    "stop tokens": {"stop_token_ids": [101, 116, 32], "temperature": 0.9},
    "biased": {"logit_bias": {"101": 5, "32": -100}, "temperature": 0.5},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, "temperature": 1},
    "expression": {"guided_regex": "([a-f]{3} ){2,6}end", "temperature": 1, "n": 2},
    "thinking": {"prompt": "Why?<think>", "thinking_token_budget": 9, "temperature": 0.9},
    "several prompts": {"prompt": ["one", "one", "two and more"], "temperature": 0.7},
    "one token": {"max_tokens": 1},
}


def body(name: str) -> dict[str, Any]:
    asked = {"model": "tiny", "prompt": f"In {name} it was said that", "max_tokens": 40, "seed": 7, **REQUESTS[name]}
    return {**asked, "ignore_eos": "schema" not in name and "expression" not in name}


async def answers(engine: Engine, *, together: bool) -> dict[str, Any]:
    """The choices of each request."""
    app = create_app(engine, ServerConfig(), ("tiny",), source=SOURCE)

    async def ask(name: str) -> Any:
        answer = await acall(app, body(name))
        assert answer.status == 200, answer.body
        found = json.loads(answer.body)
        return found["choices"], found["system_fingerprint"], found["usage"]["completion_tokens"]

    if together:
        return dict(zip(REQUESTS, await asyncio.gather(*map(ask, REQUESTS)), strict=True))
    return {name: await ask(name) for name in REQUESTS}


def told(load: Callable[..., Any], *, together: bool, **config: Any) -> tuple[dict[str, Any], Counts]:
    """What an engine answers, and what it has counted."""

    async def go() -> tuple[dict[str, Any], Counts]:
        async with ready(Engine(load, EngineConfig(**{"kv_bytes": 8 << 20, **config}))) as engine:
            assert isinstance(engine, Engine)
            return await answers(engine, together=together), engine.health().counts

    return asyncio.run(go())


@pytest.fixture(scope="module")
def expected(tiny_path: Callable[[TinySpec], Path]) -> dict[str, Any]:
    """Without drafts, one request after the other."""
    return told(native_loader(tiny_path(TARGET), threads=2, context=512), together=False, speculation=False)[0]


@pytest.mark.usefixtures("eager")
def test_so_it_is_with_keys_and_values_in_8_bits(tiny_path: Callable[[TinySpec], Path]) -> None:
    plain = native_loader(tiny_path(TARGET), threads=2, context=512, kv_type="q8")
    drafted = native_loader(tiny_path(TARGET), threads=2, context=512, draft=tiny_path(TARGET), kv_type="q8")
    found, counts = told(drafted, together=True, max_running=4, batch_tokens=48)
    assert found == told(plain, together=False, speculation=False)[0]
    assert counts.accepted_by_model > 0


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft model is asked whatever it costs, for drafts of any length."""
    monkeypatch.setattr(Policy, "account", 1e9)
    monkeypatch.setattr(Policy, "gain", lambda *_: 1e9)
    monkeypatch.setattr(Policy, "due", lambda *_: False)
    monkeypatch.setattr(Policy, "reads", lambda *_: True)
    monkeypatch.setattr(Policy, "goes_on", lambda _, right, *__: right != 0.0)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
@pytest.mark.parametrize("name", DRAFTS)
def test_every_answer_is_as_without_a_draft_model(
    name: str, together: bool, expected: dict[str, Any], tiny_path: Callable[[TinySpec], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "itself":  # what it draws of all tokens is right; random weights favour no half of them
        monkeypatch.setattr(columns, "COVERED", 2.0)
    load = native_loader(tiny_path(TARGET), threads=2, context=512, draft=tiny_path(DRAFTS[name]))
    found, counts = told(load, together=together, max_running=4, batch_tokens=48)
    assert found == expected
    assert counts.drafted_by_model > 100 or together
    assert name != "itself" or counts.accepted_by_model >= 0.9 * counts.drafted_by_model


@pytest.mark.fault("B10")
@pytest.mark.usefixtures("eager")
def test_a_guide_that_is_late_to_tell_what_comes_later_is_asked_once_for_each_sequence_and_the_answers_are_the_same(
    expected: dict[str, Any], tiny_path: Callable[[TinySpec], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def late(_: Aside, __: Callable[[], object]) -> None:
        nonlocal asked
        asked += 1

    monkeypatch.setattr(Aside, "ask", late)
    load = native_loader(tiny_path(TARGET), threads=2, context=512, draft=tiny_path(TARGET))
    found, counts = told(load, together=False, max_running=4, batch_tokens=48)
    assert found == expected
    assert 0 < asked <= 4, "of these requests, one of a schema, two samples of an expression and one with a budget have a guide"
    assert counts.drafted_by_model > 100, "for others"


@pytest.mark.usefixtures("eager")
def test_preemption_and_chunks_change_nothing(expected: dict[str, Any], tiny_path: Callable[[TinySpec], Path]) -> None:
    load = native_loader(tiny_path(TARGET), threads=2, context=512, draft=tiny_path(TARGET))
    page = 3 * 2 * 32 * 2 * 16 * 2  # of both
    found, counts = told(load, together=True, max_running=6, batch_tokens=24, kv_bytes=14 * page)
    assert found == expected
    assert counts.preempted
    assert counts.accepted_by_model
