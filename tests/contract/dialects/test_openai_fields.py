"""Every field of the OpenAI page, from the dialect's own table: null, wrong types, bounds, just outside them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quintet.dialects.fields import Boolean, Field, Integer, LogitBias, Number, Object, Prompts, Status, Stop, String, table
from quintet.dialects.openai import FIELDS, OpenAI
from quintet.errors import BadRequest, Unsupported
from quintet.request import CompletionRequest

DOCS = Path(__file__).parents[3] / "docs" / "dialects" / "openai.md"

WRONG: dict[type, list[object]] = {
    Boolean: [0, 1, 1.0, "true", "", [], [True], {}],
    Integer: [True, False, "5", "", 1.5, [], [5], {}, {"a": 1}],
    Number: [True, False, "0.5", "", [], [0.5], {}],
    String: [0, 1.5, True, False, [], ["a"], {}],
    Object: [0, 1.5, True, False, "", "a", [], [{}]],
    LogitBias: [0, 1.5, True, False, "", "a", [], [{}], {"1": "1"}, {"1": None}, {"1": True}],
    Prompts: [
        *(0, 1.5, True, {}, [None], [True], [1.5], [{}]),
        *(["a", 1], ["a", None], ["a", [1]], ["1", "2", 3]),
        *([1, "a"], [1, None], [1, True], [1, [1]]),
        *([[1], "a"], [[1], 1], [["a"]], [[1, "a"]], [[1, 2.5]], [[1, [2]]], [[True]]),
    ],
    Stop: [0, 1.5, True, {}, [None], ["a", 1], ["a", None], [["a"]], [True]],
}
OUT_OF_RANGE: dict[type, list[object]] = {
    Prompts: [[], [[]], [[1], []], [-1], [[1, -1]], [2**31], [10**100], [1, 2**63]],
    Stop: ["", [""], ["a", ""], ["a"] * 33, "x" * 1025, ["x" * 1025]],
    Boolean: [],
    Object: [],
    LogitBias: [{"1": 101}, {"1": -100.5}, {"-1": 0}, {"1.5": 0}, {" 1": 0}, {"+1": 0}, {"01": 0}, {"2147483648": 0}],
}
INSIDE: dict[type, list[object]] = {
    Boolean: [True, False],
    Object: [{}],
    LogitBias: [{}, {"0": -100, "2147483647": 100.0}, {str(token): 1 for token in range(1024)}],
    Prompts: ["", "a", "\0", [""], ["a", ""], [0], [1, 2], [2**31 - 1], [[0]], [[1], [2, 3]], ["a"] * 128, [1.0, 2]],
    Stop: [[], "a", ["a"], ["a"] * 32, "x" * 1024, "\0"],
}


def body(field: Field[Any], value: object) -> bytes:
    outer, _, inner = field.name.rpartition(".")
    sent: dict[str, object] = {"prompt": "a", inner or outer: value}
    if outer:
        sent = {"prompt": "a", "stream": True, outer: {inner: value}}
    if field.name == "stream_options":
        sent["stream"] = True
    return json.dumps(sent).encode()


def parse(data: bytes) -> CompletionRequest:
    return OpenAI().parse(data, fresh_seed=7).request


def bounds(kind: object) -> tuple[list[object], list[object]]:
    """Values at the bounds, and values just outside."""
    if isinstance(kind, Integer):
        low, high = kind.low, kind.high
        inside = [value for value in (low, high) if value is not None]
        outside = [*([low - 1, -(10**100)] if low is not None else []), *([high + 1, 10**100] if high is not None else [])]
        return [*inside, *(float(value) for value in inside if abs(value) < 2**53)], [*outside, 1e300]
    if isinstance(kind, Number):
        return [kind.low, kind.high, int(kind.high), -0.0, 5e-324], [kind.low - 1e-9, kind.high + 1e-9, 1e308, -1e308, 10**400, -(10**400)]
    if isinstance(kind, String):
        return ["", "x" * (kind.most or 5000)], ["x" * (kind.most + 1)] if kind.most else []
    return INSIDE[type(kind)], OUT_OF_RANGE[type(kind)]


def each(pick: Callable[[Field[Any]], list[object]]) -> list[Any]:
    return [pytest.param(field, value, id=f"{field.name}-{str(value)[:30]}") for field in FIELDS for value in pick(field)]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_null_means_unset(field: Field[Any]) -> None:
    without = json.loads(body(field, None))
    without.pop(field.name, None)
    assert parse(body(field, None)) == parse(json.dumps(without).encode())


@pytest.mark.parametrize(("field", "value"), each(lambda field: WRONG[type(field.kind)]))
def test_a_value_of_the_wrong_type_is_refused_by_name(field: Field[Any], value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(body(field, value))
    assert caught.value.param.startswith(field.name)
    assert caught.value.code == "invalid_type"


@pytest.mark.parametrize(("field", "value"), each(lambda field: bounds(field.kind)[1]))
def test_a_value_outside_the_range_is_refused_by_name(field: Field[Any], value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(body(field, value))
    assert caught.value.param.startswith(field.name)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("field", "value"), each(lambda field: bounds(field.kind)[0]))
def test_a_value_at_the_bound_is_taken_or_said_to_be_not_there_yet(field: Field[Any], value: object) -> None:
    if field.status is not Status.LATER or field.kind.read(field.name, value) == field.default:
        parse(body(field, value))
        return
    with pytest.raises(Unsupported) as caught:
        parse(body(field, value))
    assert caught.value.param == field.name
    assert "not supported" in str(caught.value)


def test_the_table_has_every_field_of_the_page() -> None:
    page = "model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream stream_options"
    members = {"stream_options.include_usage", "stream_options.include_obfuscation"}
    assert {field.name for field in FIELDS} == {*page.split(), *members, "suffix", "temperature", "top_p", "user"}


def test_the_docs_hold_the_table_that_the_code_enforces() -> None:
    found = re.search(r"<!-- fields -->\n(.*)<!-- /fields -->", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    assert found[1].strip() == table(FIELDS).strip()
