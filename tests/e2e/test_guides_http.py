"""Every kind of guide with every other control, over HTTP on the bundled model: what stops conforms, and no combination does harm."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import jsonschema_rs
import pytest
from tests.e2e.test_sampling_http import PAGES, Target, served
from tests.support.bundled import bundled_path
from tests.support.loading import native_loader

from quintet.backends.native.core.loader import PAGE

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CHOICE = 'root ::= "red" | "green" | "blue"'


def is_json(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def is_person(text: str) -> bool:
    return jsonschema_rs.is_valid(SCHEMA, json.loads(text))


def is_color(text: str) -> bool:
    return text in ("red", "green", "blue")


Conforms = Callable[[str], bool]
KINDS: dict[str, tuple[str, dict[str, Any], Conforms]] = {
    "object": ("fireworks", {"response_format": {"type": "json_object"}}, is_json),
    "schema": ("fireworks", {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}}, is_person),
    "grammar": ("fireworks", {"response_format": {"type": "grammar", "grammar": CHOICE}}, is_color),
    "root": ("cerebras", {"grammar_root": "insidevalue"}, lambda text: not isinstance(json.loads(text), dict | list)),
    "ws": ("cerebras", {"grammar_root": "ws"}, lambda text: bool(re.fullmatch(r"[ \t\n\r]{1,20}", text))),
}
CONTROLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "n, logprobs": {"n": 3, "logprobs": 3},
    "stop, greedy": {"stop": ["e", "Z"], "temperature": 0},
    "bias": {"logit_bias": {"100": 100, "17": -100}},
    "one token, echo": {"max_tokens": 1, "echo": True},
}


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    yield from served(lambda: native_loader(bundled_path(), threads=2, context=PAGES * PAGE), lambda model: min(model.tokenizer.eos_ids))


def post(target: Target, dialect: str, **fields: Any) -> httpx2.Response:
    body = {"model": "m", "prompt": "JSON: ", "seed": 7, "max_tokens": 30, **fields}
    return httpx2.post(f"{target.url}/{dialect}/v1/completions", json=body, timeout=120)


def streamed(answer: httpx2.Response) -> dict[int, tuple[str, str]]:
    """Text and finish reason of each choice."""
    found: dict[int, tuple[str, str]] = {}
    for line in answer.text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                text, finish = found.get(choice["index"], ("", ""))
                found[choice["index"]] = text + choice["text"], choice.get("finish_reason") or finish
    return found


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_guide_goes_with_every_other_control(target: Target, kind: str, control: str) -> None:
    """What stops conforms, unless a stop string ended it; a stream says the same; nothing is a server's error."""
    dialect, guide, conforms = KINDS[kind]
    answer = post(target, dialect, **guide, **CONTROLS[control])
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert {choice["finish_reason"] for choice in choices} <= {"stop", "length"}
    if not ("stop" in control or "echo" in control):
        assert all(conforms(choice["text"]) for choice in choices if choice["finish_reason"] == "stop")
    again = streamed(post(target, dialect, **guide, **CONTROLS[control], stream=True))
    assert again == {choice["index"]: (choice["text"], choice["finish_reason"]) for choice in choices}


@pytest.mark.parametrize(("kind", "field"), [("schema", "min_tokens"), ("root", "min_tokens")])
def test_what_forbids_the_end_contradicts_a_guide_and_both_are_named(target: Target, kind: str, field: str) -> None:
    dialect, guide, _ = KINDS[kind]
    answer = post(target, dialect, **guide, **{field: 5})
    assert answer.status_code == 400
    assert field in answer.text and next(iter(guide)) in answer.text


@pytest.mark.fault("C08")
def test_a_guide_and_a_bias_that_leave_nothing_end_in_an_error_of_that_request_only(target: Target) -> None:
    """Every token that the grammar allows is banned."""
    pieces = [bytes(piece) for piece in target.model.tokenizer.pieces]
    banned = {str(token): -100 for token, piece in enumerate(pieces) if piece and b"red".startswith(piece)}
    guide = {"response_format": {"type": "grammar", "grammar": 'root ::= "red"'}}
    answer = post(target, "fireworks", **guide, logit_bias=banned)
    assert answer.status_code == 400
    assert "ban every token that could come next: guide, logit_bias." in answer.text
    frames = post(target, "fireworks", **guide, logit_bias=banned, stream=True)
    assert frames.status_code == 400 and "ban every token" in frames.text
    assert post(target, "fireworks", **guide).json()["choices"][0]["text"] == "red"


@pytest.mark.fault("B11")
def test_hostile_guides_are_refused_over_http_while_others_are_served(target: Target) -> None:
    deep = {"type": "grammar", "grammar": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000}
    many = {"type": "grammar", "grammar": "root ::= " + " | ".join(f'"a{i}"' for i in range(20_000))}
    for hostile in (deep, many):
        answer = post(target, "fireworks", response_format=hostile)
        assert answer.status_code == 400, answer.text
        assert "response_format" in answer.text
    dialect, guide, conforms = KINDS["grammar"]
    assert conforms(post(target, dialect, **guide).json()["choices"][0]["text"])


@pytest.mark.fault("C12")
def test_a_guide_that_takes_much_is_followed_by_a_fresh_engine_as_far_as_by_one_that_others_have_asked() -> None:
    """Followers of a guide share what was built of it, and to build this one's takes more in a mask than the library would let it."""

    def asked(*seeds: int) -> list[tuple[int, str]]:
        engine = served(lambda: native_loader(bundled_path(), threads=2, context=PAGES * PAGE), lambda model: min(model.tokenizer.eos_ids))
        target, body = next(engine), {"prompt": "The best thing about summer is", "max_tokens": 14, "temperature": 2.0}
        answers = [post(target, "openai", **body, seed=seed, guided_regex="(.{3,40}a.{3,40}){1,4}") for seed in seeds]
        next(engine, None)
        return [(answer.status_code, json.dumps(answer.json().get("choices"))) for answer in answers]

    alone = asked(3)
    assert alone[0][0] == 200
    assert asked(0, 7, 2, 3)[3:] == alone
