"""Every field of the Fireworks and Together pages, from the dialects' own tables: null, wrong types, bounds, just outside them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from quintet.backends.base import Capabilities, Health, Prepared, SequenceSpec, State
from quintet.backends.native.guide_translate import GuideError, translate, verify
from quintet.backends.native.prepare import resolve, texts
from quintet.dialects import fireworks, together
from quintet.dialects.base import Dialect, Parsed
from quintet.dialects.fields import Boolean, Field, Integer, LogitBias, Number, Object, OneOf, Prompts, Status, Stop, String, table
from quintet.dialects.fireworks_kinds import Effort, Grammar, Hint, Images, LogprobsChoice, Schema
from quintet.errors import BadRequest, Unsupported
from quintet.request import Guide
from quintet.service import Service

DOCS = Path(__file__).parents[3] / "docs" / "dialects"
DIALECTS: dict[str, tuple[Dialect, tuple[Field[Any], ...]]] = {
    "fireworks": (fireworks.Fireworks(), fireworks.FIELDS),
    "together": (together.Together(), together.FIELDS),
}
NEEDS: dict[str, dict[str, object]] = {
    "top_logprobs": {"logprobs": 1},
    "response_format": {"response_format": {"type": "text"}},
    "response_format.json_schema": {"response_format": {"type": "json_schema"}},
    "response_format.schema": {"response_format": {"type": "json_schema"}},
    "response_format.grammar": {"response_format": {"type": "grammar"}},
    "thinking": {"thinking": {"type": "disabled"}},
    "thinking.budget_tokens": {"thinking": {"type": "enabled"}},
}
"""What a field needs beside it to be allowed."""

NOT_NUMBERS: list[object] = [True, False, "5", "", [], [5], {}, {"a": 1}]
WRONG: dict[type, list[object]] = {
    Boolean: [0, 1, 1.0, "true", "", [], [True], {}],
    Integer: [*NOT_NUMBERS, 1.5],
    Number: NOT_NUMBERS,
    String: [0, 1.5, True, False, [], ["a"], {}],
    OneOf: [0, 1.5, True, [], ["text"], {}],
    Object: [0, 1.5, True, False, "", "a", [], [{}]],
    LogitBias: [0, 1.5, True, "", "5", [], [[5, 1]], {"5": "1"}, {"5": None}, {"5": True}, {"5": [1]}, {"5": {}}],
    Prompts: [
        *(0, 1.5, True, {}, [None], [True], [1.5], [{}]),
        *(["a", 1], ["a", None], ["a", [1]], ["1", "2", 3]),
        *([1, "a"], [1, None], [1, True], [1, [1]]),
        *([[1], "a"], [[1], 1], [["a"]], [[1, "a"]], [[1, 2.5]], [[1, [2]]], [[True]]),
    ],
    Stop: [0, 1.5, True, {}, [None], ["a", 1], ["a", None], [["a"]], [True]],
    LogprobsChoice: ["true", "1", "", 1.5, [], [1], {}],
    Effort: [1.5, [], ["low"], {}],
    Schema: [0, 1.5, True, [], [{}]],
    Grammar: [0, 1.5, True, [], {}],
    Images: [0, 1.5, True, "data:,", {}, [1], [None], [{}]],
    Hint: [0, 1.5, True],
}
OUT_OF_RANGE: dict[type, list[object]] = {
    Boolean: [],
    Object: [],
    Hint: [],
    Images: [],
    OneOf: ["", "TEXT", "x" * 5000, "text\0"],
    LogitBias: [
        *({key: 1} for key in ("-1", "+5", " 12 ", "1.5", "1_000", "\u0661\u0662", "1e3", "05", "", "2147483648", "9" * 5000)),
        *({"5": value} for value in (100.5, -101, 1e308, 10**400)),
        {str(key): 1 for key in range(1025)},
    ],
    Prompts: [[], [[]], [[1], []], [-1], [[1, -1]], [2**31], [10**100], [1, 2**63]],
    LogprobsChoice: [-1, 6, 10**100],
    Effort: ["", "LOW", "max", -1, 10**100],
    Schema: ["", "{", "[]", "5", "null", '{"a":1,"a":2}', "\0"],
    Grammar: ["a\0b"],
}
INSIDE: dict[type, list[object]] = {
    Boolean: [True, False],
    Object: [],
    Hint: [],
    Images: [[], ["data:image/png;base64,AAAA"], [["data:image/png;base64,AAAA"], []]],
    LogitBias: [{}, {"0": -100}, {"5": 100, "2147483647": 0.5}],
    Prompts: ["", "a", "\0", [""], ["a", ""], [0], [1, 2], [2**31 - 1], [[0]], [[1], [2, 3]], ["a"] * 128, [1.0, 2]],
    LogprobsChoice: [True, False, 0, 5, 5.0],
    Effort: ["none", "low", "medium", "high", 0, 4096, True, False],
    Schema: [{"type": "object"}, '{"type": "object"}', {"name": "a", "schema": {"type": "object"}}, {"minimum": 10**30}],
    Grammar: ['root ::= "a"'],
}


def body(field: Field[Any], value: object) -> bytes:
    outer, _, inner = field.name.rpartition(".")
    sent: dict[str, Any] = {"prompt": "a", **json.loads(json.dumps(NEEDS.get(field.name, {})))}
    if outer:
        sent[outer] = {**sent.get(outer, {}), inner: value}
    else:
        sent[inner] = value
    return json.dumps(sent).encode()


def parse(dialect: str, data: bytes) -> Parsed:
    return DIALECTS[dialect][0].parse(data, fresh_seed=7)


def bounds(kind: object) -> tuple[list[object], list[object]]:
    """Values at the bounds, and values just outside."""
    if isinstance(kind, Integer):
        low, high = kind.low, kind.high
        inside = [value for value in (low, high) if value is not None]
        outside = [*([low - 1, -(10**100)] if low is not None else []), *([high + 1, 10**100] if high is not None else [])]
        return [*inside, *(float(value) for value in inside if abs(value) < 2**53)], [*outside, 1e300]
    if isinstance(kind, Number):
        return [kind.low, kind.high, int(kind.high)], [kind.low - 1e-9, kind.high + 1e-3, 1e308, -1e308, 10**400, -(10**400)]
    if isinstance(kind, String):
        return ["", "x" * (kind.most or 5000)], ["x" * (kind.most + 1)] if kind.most else []
    if isinstance(kind, Stop):
        many, long = ["a"] * kind.most, "x" * kind.longest
        return [[], "a", ["a"], many, long, "\0"], ["", [""], ["a", ""], [*many, "b"], long + "x", [long + "x"]]
    if isinstance(kind, OneOf):
        return list(kind.words), OUT_OF_RANGE[OneOf]
    return INSIDE[type(kind)], OUT_OF_RANGE[type(kind)]


def each(pick: Callable[[Field[Any]], list[object]]) -> list[Any]:
    return [
        pytest.param(dialect, field, value, id=f"{dialect}-{field.name}-{str(value)[:30]}")
        for dialect, (_, fields) in DIALECTS.items()
        for field in fields
        for value in pick(field)
    ]


def later(dialect: str, name: str) -> bool:
    """Whether the field, or the object it is in, is not there yet."""
    parents = {name, name.partition(".")[0]}
    return any(field.status is Status.LATER for field in DIALECTS[dialect][1] if field.name in parents)


@pytest.mark.parametrize(("dialect", "field", "value"), each(lambda field: [None]))
def test_null_means_unset(dialect: str, field: Field[Any], value: object) -> None:
    if field.shown == "required":
        with pytest.raises(BadRequest) as caught:
            parse(dialect, body(field, value))
        assert (caught.value.code, caught.value.param) in {
            ("missing_required_parameter", field.name),
            ("unsupported_parameter", field.name.partition(".")[0]),
        } or later(dialect, field.name)
        return
    without = json.loads(body(field, value))
    outer, _, inner = field.name.rpartition(".")
    (without[outer] if outer else without).pop(inner)
    try:
        expected: object = parse(dialect, json.dumps(without).encode())
    except BadRequest as error:
        expected = str(error)
    try:
        got: object = parse(dialect, body(field, value))
    except BadRequest as error:
        got = str(error)
    assert got == expected or later(dialect, field.name)


@pytest.mark.parametrize(("dialect", "field", "value"), each(lambda field: WRONG[type(field.kind)]))
def test_a_value_of_the_wrong_type_is_refused_by_name(dialect: str, field: Field[Any], value: object) -> None:
    if isinstance(field.kind, Hint) and isinstance(value, field.kind.types):
        return
    with pytest.raises(BadRequest) as caught:
        parse(dialect, body(field, value))
    assert caught.value.param.startswith(field.name) or (later(dialect, field.name) and caught.value.param == field.name.partition(".")[0])
    assert caught.value.code == "invalid_type" or later(dialect, field.name)


@pytest.mark.parametrize(("dialect", "field", "value"), each(lambda field: bounds(field.kind)[1]))
def test_a_value_outside_the_range_is_refused_by_name(dialect: str, field: Field[Any], value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(dialect, body(field, value))
    assert caught.value.param.startswith(field.name) or (later(dialect, field.name) and caught.value.param == field.name.partition(".")[0])
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("dialect", "field", "value"), each(lambda field: bounds(field.kind)[0]))
def test_a_value_at_the_bound_is_taken_or_said_to_be_not_there_yet(dialect: str, field: Field[Any], value: object) -> None:
    try:
        parse(dialect, body(field, value))
    except Unsupported as error:
        assert later(dialect, field.name)
        assert error.param == field.name.partition(".")[0]
    except BadRequest as error:
        # A rule over several fields: `schema` and `grammar` are not allowed with every type.
        assert field.name == "response_format.type"
        assert error.param.startswith("response_format.")


@pytest.mark.parametrize(
    ("dialect", "field"), [(name, field) for name, (_, fields) in DIALECTS.items() for field in fields if field.status is Status.LATER]
)
def test_a_field_that_is_not_there_yet_is_refused_with_any_value_but_the_default(dialect: str, field: Field[Any]) -> None:
    inside = [value for value in bounds(field.kind)[0] or [{"type": "text"}] if field.kind.read(field.name, value) != field.default]
    for value in inside:
        with pytest.raises(Unsupported) as caught:
            parse(dialect, body(field, value))
        assert caught.value.param == field.name.partition(".")[0]
        assert re.search(r"not supported|none is served", str(caught.value))
    assert inside


class Checking:
    """The backend as far as a request is checked: with the engine's own rules."""

    capabilities = Capabilities("m", 4096, 257, [b""] * 257, max_logprobs=20, max_sequences=128, fingerprint="f")

    def health(self) -> Health:
        return Health(State.READY)

    async def prepare(self, specs: Sequence[SequenceSpec], tenant: str = "") -> Prepared:
        grammars = {spec.guide: translated(spec.guide) for spec in specs if spec.guide}
        encoded = {text: list(text.encode()) for text in texts(specs)}
        return Prepared(1, resolve(specs, encoded, self.capabilities, 256, grammars=grammars))


def translated(guide: Guide) -> str:
    """As the engine does in another process."""
    try:
        grammar = translate(guide.kind, guide.text)
        verify(guide.kind, grammar)
    except GuideError as error:
        raise BadRequest(guide.param, str(error)) from None
    return grammar


@pytest.mark.parametrize(("dialect", "field", "value"), each(lambda field: bounds(field.kind)[0]))
def test_what_is_taken_is_offered_by_the_engine(dialect: str, field: Field[Any], value: object) -> None:
    try:
        request = parse(dialect, body(field, value)).request
    except BadRequest:
        return
    try:
        asyncio.run(Service(Checking(), lambda: 0.0).prepare(request))  # type: ignore[arg-type]
    except Unsupported as error:
        assert request.reasoning is not None and request.reasoning.budget > 0, str(error)
        assert error.param == request.reasoning.param == field.name.partition(".")[0] and "does not reason" in str(error)
    except BadRequest:
        pass  # a rule of the model's, such as the range of token ids


def test_the_fireworks_table_has_every_field_of_the_page() -> None:
    page = """model prompt images max_tokens echo_last temperature top_p top_k frequency_penalty perf_metrics_in_response presence_penalty
        repetition_penalty reasoning_effort mirostat_lr mirostat_target n ignore_eos stop response_format stream
        context_length_exceeded_behavior logprobs top_logprobs echo min_p typical_p logit_bias user"""
    sdk = """max_completion_tokens seed return_token_ids raw_output prompt_cache_isolation_key prompt_cache_key thinking metadata
        service_tier speculation prediction reasoning_history"""
    assert {field.name for field in fireworks.FIELDS if "." not in field.name} == {*page.split(), *sdk.split()}


def test_the_together_table_has_every_field_of_the_page() -> None:
    page = """prompt model max_tokens stop temperature top_p top_k repetition_penalty stream logprobs echo n safety_model min_p
        presence_penalty frequency_penalty logit_bias seed"""
    assert {field.name for field in together.FIELDS} == set(page.split())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_docs_hold_the_table_that_the_code_enforces(dialect: str) -> None:
    found = re.search(r"<!-- fields -->\n(.*)<!-- /fields -->", (DOCS / f"{dialect}.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    assert found[1].strip() == table(DIALECTS[dialect][1]).strip()
