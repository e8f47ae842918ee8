"""Every field of the Cerebras and Novita pages, from the dialects' own tables: null, wrong types, bounds, just outside them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.dialects.test_fireworks_together_fields import Checking

from quintet.dialects import cerebras, novita
from quintet.dialects.base import Dialect, Parsed
from quintet.dialects.fields import (
    Boolean,
    Field,
    Integer,
    LogitBias,
    Number,
    Object,
    OneOf,
    Positive,
    Prompts,
    Status,
    Stop,
    String,
    table,
)
from quintet.errors import BadRequest, Unsupported
from quintet.service import Service

DOCS = Path(__file__).parents[3] / "docs" / "dialects"
DIALECTS: dict[str, tuple[Dialect, tuple[Field[Any], ...]]] = {
    "cerebras": (cerebras.Cerebras(), cerebras.FIELDS),
    "novita": (novita.Novita(), novita.FIELDS),
}

NOT_NUMBERS: list[object] = [True, False, "5", "", [], [5], {}, {"a": 1}]
WRONG: dict[type, list[object]] = {
    Boolean: [0, 1, 1.0, "true", "", [], [True], {}],
    Integer: [*NOT_NUMBERS, 1.5],
    Number: NOT_NUMBERS,
    Positive: NOT_NUMBERS,
    String: [0, 1.5, True, False, [], ["a"], {}],
    OneOf: [0, 1.5, True, [], ["root"], {}],
    Object: [0, 1.5, True, False, "", "a", [], [{}]],
    LogitBias: [0, 1.5, True, "", "5", [], [[5, 1]], {"5": "1"}, {"5": None}, {"5": True}, {"5": [1]}, {"5": {}}],
    Prompts: [
        *(0, 1.5, True, {}, [None], [True], [1.5], [{}]),
        *(["a", 1], ["a", None], ["a", [1]], ["1", "2", 3]),
        *([1, "a"], [1, None], [1, True], [1, [1]]),
        *([[1], "a"], [[1], 1], [["a"]], [[1, "a"]], [[1, 2.5]], [[1, [2]]], [[True]]),
    ],
    Stop: [0, 1.5, True, {}, [None], ["a", 1], ["a", None], [["a"]], [True]],
}
OUT_OF_RANGE: dict[type, list[object]] = {
    Boolean: [],
    Object: [],
    OneOf: ["", "ROOT", "x" * 5000, "root\0"],
    LogitBias: [
        *({key: 1} for key in ("-1", "+5", " 12 ", "1.5", "1_000", "\u0661\u0662", "1e3", "05", "", "2147483648", "9" * 5000)),
        *({"5": value} for value in (100.5, -101, 1e308, 10**400)),
        {str(key): 1 for key in range(1025)},
    ],
    Prompts: [[], [[]], [[1], []], [-1], [[1, -1]], [2**31], [10**100], [1, 2**63], ["a"] * 129],
}
INSIDE: dict[type, list[object]] = {
    Boolean: [True, False],
    Object: [{}],
    LogitBias: [{}, {"0": -100}, {"5": 100, "2147483647": 0.5}],
    Prompts: ["", "a", "\0", [""], ["a", ""], [0], [1, 2], [2**31 - 1], [[0]], [[1], [2, 3]], ["a"] * 128, [1.0, 2]],
}


def bounds(kind: object) -> tuple[list[object], list[object]]:
    """Values at the bounds, and values just outside."""
    if isinstance(kind, Integer):
        low, high = kind.low, kind.high
        inside = [value for value in (low, high) if value is not None]
        outside = [*([low - 1, -(10**100)] if low is not None else []), *([high + 1, 10**100] if high is not None else [])]
        return [*inside, *(float(value) for value in inside if abs(value) < 2**53)], [*outside, 1e300]
    if isinstance(kind, Number):
        return [kind.low, kind.high, int(kind.low)], [kind.low - 1e-9, kind.high + 1e-3, 1e308, -1e308, 10**400, -(10**400)]
    if isinstance(kind, Positive):
        return [5e-324, kind.high], [0, -0.0, -1e-9, kind.high + 1e-3, 1e308, -1e308, 10**400, -(10**400)]
    if isinstance(kind, String):
        return ["", "x" * (kind.most or 5000)], ["x" * (kind.most + 1)] if kind.most else []
    if isinstance(kind, Stop):
        many, long = ["a"] * kind.most, "x" * kind.longest
        return [[], "a", ["a"], many, long, "\0"], ["", [""], ["a", ""], [*many, "b"], long + "x", [long + "x"]]
    if isinstance(kind, OneOf):
        return list(kind.words), OUT_OF_RANGE[OneOf]
    return INSIDE[type(kind)], OUT_OF_RANGE[type(kind)]


def body(field: Field[Any], value: object) -> bytes:
    outer, _, inner = field.name.rpartition(".")
    sent: dict[str, Any] = {"prompt": "a", **({outer: {inner: value}} if outer else {inner: value})}
    if "stream_options" in field.name:
        sent["stream"] = True
    return json.dumps(sent).encode()


def parse(dialect: str, data: bytes) -> Parsed:
    return DIALECTS[dialect][0].parse(data, fresh_seed=7)


def each(pick: Callable[[Field[Any]], list[object]]) -> list[Any]:
    return [
        pytest.param(dialect, field, value, id=f"{dialect}-{field.name}-{str(value)[:30]}")
        for dialect, (_, fields) in DIALECTS.items()
        for field in fields
        for value in pick(field)
    ]


@pytest.mark.parametrize(("dialect", "field", "value"), each(lambda field: [None]))
def test_null_means_unset(dialect: str, field: Field[Any], value: object) -> None:
    if field.shown == "required":
        with pytest.raises(BadRequest, match="is required") as caught:
            parse(dialect, body(field, value))
        assert (caught.value.param, caught.value.code) == (field.name, "missing_required_parameter")
        return
    without = json.loads(body(field, value))
    outer, _, inner = field.name.rpartition(".")
    (without[outer] if outer else without).pop(inner)
    assert parse(dialect, body(field, value)) == parse(dialect, json.dumps(without).encode())


@pytest.mark.parametrize(("dialect", "field", "value"), each(lambda field: WRONG[type(field.kind)]))
def test_a_value_of_the_wrong_type_is_refused_by_name(dialect: str, field: Field[Any], value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(dialect, body(field, value))
    assert caught.value.param.startswith(field.name)
    assert caught.value.code == "invalid_type"


@pytest.mark.parametrize(("dialect", "field", "value"), each(lambda field: bounds(field.kind)[1]))
def test_a_value_outside_the_range_is_refused_by_name(dialect: str, field: Field[Any], value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(dialect, body(field, value))
    assert caught.value.param.startswith(field.name)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("dialect", "field", "value"), each(lambda field: bounds(field.kind)[0]))
def test_a_value_at_the_bound_is_taken_or_said_to_be_not_supported(dialect: str, field: Field[Any], value: object) -> None:
    if field.status is not Status.LATER or field.kind.read(field.name, value) == field.default:
        parse(dialect, body(field, value))
        return
    with pytest.raises(Unsupported, match="is not supported") as caught:
        parse(dialect, body(field, value))
    assert caught.value.param == field.name


@pytest.mark.parametrize(("dialect", "field", "value"), each(lambda field: bounds(field.kind)[0]))
def test_what_is_taken_is_offered_by_the_engine(dialect: str, field: Field[Any], value: object) -> None:
    try:
        request = parse(dialect, body(field, value)).request
    except Unsupported:
        return
    try:
        asyncio.run(Service(Checking(), lambda: 0.0).prepare(request))
    except BadRequest as error:
        assert not isinstance(error, Unsupported), str(error)


def test_the_cerebras_table_has_every_field_of_the_page_and_the_sdk() -> None:
    page = "prompt model stream return_raw_tokens max_tokens min_tokens grammar_root seed stop temperature top_p echo user logprobs"
    sdk = """best_of frequency_penalty logit_bias n presence_penalty prompt_cache_key reasoning_format
        stream_options stream_options.include_usage suffix"""
    assert [field.name for field in cerebras.FIELDS] == [*page.split(), *sdk.split()]


def test_the_novita_table_has_every_field_of_the_page() -> None:
    page = """model prompt max_tokens stream stream_options stream_options.include_usage n seed frequency_penalty presence_penalty
        repetition_penalty stop temperature top_p top_k min_p logit_bias logprobs best_of"""
    assert [field.name for field in novita.FIELDS] == page.split()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_docs_hold_the_table_that_the_code_enforces(dialect: str) -> None:
    found = re.search(r"<!-- fields -->\n(.*)<!-- /fields -->", (DOCS / f"{dialect}.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    assert found[1].strip() == table(DIALECTS[dialect][1]).strip()
