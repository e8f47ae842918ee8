"""Guides, fill in the middle and best_of on real models."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema_rs
import pytest
from tests.support.loading import native_loader
from tests.support.preparing import prepare, service
from tests.support.requests import MINIMAL

from quintet.backends.base import State
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.worker.load import load_tokenizer
from quintet.config import EngineConfig
from quintet.errors import Unsupported
from quintet.events import ChoiceDelta, ChoiceDone, Event, Finish
from quintet.inputs.sequence import Prepared, SequenceSpec
from quintet.request import Guide, GuideKind, Sampling, StopRules


class Lab:
    """A model in an engine, on an event loop of its own."""

    def __init__(self, path: Path) -> None:
        self._runner = asyncio.Runner()
        self.engine = self._runner.run(self._start(path))

    async def _start(self, path: Path) -> Engine:
        engine = Engine(native_loader(path, threads=2, context=1024), EngineConfig(kv_bytes=1 << 27))
        while engine.health().state is State.LOADING:
            await asyncio.sleep(0.02)
        return engine

    def close(self) -> None:
        self._runner.run(self.engine.close())
        self._runner.close()

    def prepare(self, prompt: str, suffix: str) -> Prepared:
        return self._runner.run(prepare(self.engine, [SequenceSpec(prompt, 1, Sampling(0.0, 1.0, 0), None, False, suffix=suffix)]))

    def complete(self, prompt: str, **wanted: object) -> list[Event]:
        plain = replace(MINIMAL, model="m", prompts=(prompt,), max_tokens=96, sampling=Sampling(0.8, 1.0, 0))

        async def go() -> list[Event]:
            job = await service(self.engine).prepare(replace(plain, **wanted))  # type: ignore[arg-type]
            return [event async for batch in job.events() for event in batch]

        return self._runner.run(go())


@pytest.fixture(scope="module")
def bundled(model_path: Path) -> Iterator[Lab]:
    lab = Lab(model_path)
    yield lab
    lab.close()


@pytest.fixture(scope="module")
def coder() -> Iterator[Lab]:
    """A model with fill-in-the-middle tokens; ``QUINTET_TEST_FIM_MODEL`` names its file (we use Qwen2.5-Coder 0.5B)."""
    if not (path := os.environ.get("QUINTET_TEST_FIM_MODEL")):
        pytest.skip("QUINTET_TEST_FIM_MODEL names no file")
    lab = Lab(Path(path))
    yield lab
    lab.close()


def ended(events: list[Event]) -> list[str]:
    """The texts of the choices that the model ended by itself."""
    texts: dict[int, str] = {}
    for event in events:
        if isinstance(event, ChoiceDelta):
            texts[event.index] = texts.get(event.index, "") + event.text
    return [texts.get(event.index, "") for event in events if isinstance(event, ChoiceDone) and event.finish is Finish.EOS]


@pytest.mark.parametrize(("include", "text"), [(False, ""), (True, "<|im_start|>")])
def test_a_stop_string_that_is_a_control_tokens_text_stops_there(bundled: Lab, include: bool, text: str) -> None:
    """Together's page: ""</s>" will stop generation as soon as the model generates the given token"; shown only if that is asked for."""
    forced = Sampling(0.0, 1.0, 0, logit_bias=((1, 100.0),))  # <|im_start|>, which ends nothing by itself
    events = bundled.complete("Once", sampling=forced, stop=StopRules(("nowhere", "<|im_start|>"), include), max_tokens=9, token_ids=True)
    assert [event.text for event in events if isinstance(event, ChoiceDelta)] == [text] * include
    assert [(event.finish, event.stop) for event in events if isinstance(event, ChoiceDone)] == [(Finish.STOP, "<|im_start|>")]
    going_on = bundled.complete("Once", sampling=forced, stop=StopRules(("nowhere",)), max_tokens=9)
    assert [event.finish for event in going_on if isinstance(event, ChoiceDone)] == [Finish.LENGTH]


SCHEMAS: list[dict[str, object]] = [
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 4},
    {"anyOf": [{"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"}, {"type": "null"}]},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=["object", "array", "anyOf"])
def test_json_that_the_model_ends_is_valid(bundled: Lab, schema: dict[str, object]) -> None:
    guide = Guide(GuideKind.JSON_SCHEMA, json.dumps(schema), "response_format")
    texts = ended(bundled.complete("A person and a colour as JSON:\n", guide=guide, n=6))
    assert len(texts) >= 4
    for text in texts:
        assert jsonschema_rs.is_valid(schema, json.loads(text)), text


@pytest.mark.parametrize(
    ("guide", "pattern"),
    [
        (Guide(GuideKind.REGEX, r"[a-z]{3}-\d{4}", "grammar"), r"[a-z]{3}-[0-9]{4}"),
        (Guide(GuideKind.CHOICE, '["positive", "negative"]', "choice"), "positive|negative"),
        (Guide(GuideKind.GRAMMAR, 'root ::= "no, "? "no, "? "yes"', "grammar"), "(no, ){0,2}yes"),
        (Guide(GuideKind.JSON_OBJECT, "", "response_format"), r"\s*\{[\s\S]*\}\s*"),
    ],
    ids=["regex", "choice", "grammar", "json_object"],
)
def test_text_that_the_model_ends_matches(bundled: Lab, guide: Guide, pattern: str) -> None:
    texts = ended(bundled.complete("Answer:", guide=guide, n=4))
    assert texts
    assert all(re.fullmatch(pattern, text) for text in texts), texts


def test_the_bundled_model_cannot_fill_in_the_middle(bundled: Lab) -> None:
    with pytest.raises(Unsupported, match="suffix"):
        bundled.complete("def f():", suffix="\n")


@pytest.mark.parametrize(
    ("prompt", "suffix", "start"),
    [
        ("def add(a, b):\n    ", "\n\nprint(add(1, 2))\n", "return a + b"),
        ("import math\n\ndef area(radius):\n    return ", " * radius ** 2\n", "math.pi"),
    ],
)
def test_a_coder_fills_the_gap(coder: Lab, prompt: str, suffix: str, start: str) -> None:
    """Greedily; what comes depends on the text after the gap."""
    greedy = Sampling(0.0, 1.0, 0)
    events = coder.complete(prompt, suffix=suffix, sampling=greedy, max_tokens=8)
    assert "".join(event.text for event in events if isinstance(event, ChoiceDelta)).startswith(start)


def test_the_form_is_the_one_that_the_markers_spell(coder: Lab) -> None:
    """A prompt that writes the markers out, as llama.cpp's form has them, gives the same tokens."""
    spelled = load_tokenizer(Path(os.environ["QUINTET_TEST_FIM_MODEL"])).encode("<|fim_prefix|>a <|fim_suffix|> b<|fim_middle|>")
    assert coder.prepare("a ", suffix=" b").sequences[0].tokens == tuple(spelled)


def test_best_of_is_the_best_of_all(bundled: Lab) -> None:
    """The same candidates, all shown and ranked by hand."""
    candidates = bundled.complete("The capital of France is", n=6, best_of=6, logprobs=0, max_tokens=10)
    scores: dict[int, list[float]] = {}
    for event in candidates:
        if isinstance(event, ChoiceDelta):
            scores.setdefault(event.index, []).extend(token.logprob or 0.0 for token in event.tokens)
    ranked = sorted(scores, key=lambda index: -sum(scores[index]) / len(scores[index]))
    best = bundled.complete("The capital of France is", n=2, best_of=6, max_tokens=10)
    assert [event.seed for event in best if isinstance(event, ChoiceDone)] == ranked[:2]
