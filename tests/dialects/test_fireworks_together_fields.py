"""Every field of the Fireworks and Together pages, from the dialects' own tables: null, wrong types, bounds, just outside them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.dialects.tables import WRONG, Checking, bounds, each, table_in_docs
from tests.support.preparing import service

from quintet.dialects.base import Dialect, Parsed
from quintet.dialects.fields import Field, table
from quintet.dialects.fireworks import dialect as fireworks
from quintet.dialects.together import dialect as together
from quintet.errors import BadRequest, Unsupported

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


@pytest.mark.parametrize(("dialect", "field", "value"), each(DIALECTS, lambda field: [None]))
def test_null_means_unset(dialect: str, field: Field[Any], value: object) -> None:
    if field.shown == "required":
        with pytest.raises(BadRequest) as caught:
            parse(dialect, body(field, value))
        assert (caught.value.code, caught.value.param) in {
            ("missing_required_parameter", field.name),
            ("unsupported_parameter", field.name.partition(".")[0]),
        }
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
    assert got == expected


@pytest.mark.fault("A02")
@pytest.mark.parametrize(("dialect", "field", "value"), each(DIALECTS, lambda field: WRONG[type(field.kind)]))
def test_a_value_of_the_wrong_type_is_refused_by_name(dialect: str, field: Field[Any], value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(dialect, body(field, value))
    assert caught.value.param.startswith(field.name)
    assert caught.value.code == "invalid_type"


@pytest.mark.fault("A08", "B05")
@pytest.mark.parametrize(("dialect", "field", "value"), each(DIALECTS, lambda field: bounds(field.kind)[1]))
def test_a_value_outside_the_range_is_refused_by_name(dialect: str, field: Field[Any], value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(dialect, body(field, value))
    assert caught.value.param.startswith(field.name)
    assert len(str(caught.value)) < 300


@pytest.mark.fault("A08")
@pytest.mark.parametrize(("dialect", "field", "value"), each(DIALECTS, lambda field: bounds(field.kind)[0]))
def test_a_value_at_the_bound_is_taken(dialect: str, field: Field[Any], value: object) -> None:
    try:
        parse(dialect, body(field, value))
    except BadRequest as error:
        # A rule over several fields: a type is required, and `schema` and `grammar` are not allowed with every type.
        assert field.name in ("response_format", "response_format.type", "thinking")
        assert error.param.startswith(f"{field.name.partition('.')[0]}.")


@pytest.mark.parametrize(("dialect", "field", "value"), each(DIALECTS, lambda field: bounds(field.kind)[0]))
def test_what_is_taken_is_offered_by_the_engine(dialect: str, field: Field[Any], value: object) -> None:
    try:
        request = parse(dialect, body(field, value)).request
    except BadRequest:
        return
    try:
        asyncio.run(service(Checking()).prepare(request))
    except Unsupported as error:
        if request.images:
            assert error.param == field.name == "images"
            return
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
    assert table_in_docs(dialect) == table(DIALECTS[dialect][1]).strip()
