"""Every field of the OpenAI, Cerebras and Novita pages, from the dialects' own tables: null, wrong types, bounds, just outside them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.dialects.tables import WRONG, Checking, bounds, each, table_in_docs
from tests.support.preparing import service

from quintet.dialects.base import Dialect, Parsed
from quintet.dialects.cerebras import dialect as cerebras
from quintet.dialects.fields import Field, Status, table
from quintet.dialects.novita import dialect as novita
from quintet.dialects.openai import dialect as openai
from quintet.errors import BadRequest, Unsupported

DIALECTS: dict[str, tuple[Dialect, tuple[Field[Any], ...]]] = {
    "openai": (openai.OpenAI(), openai.FIELDS),
    "cerebras": (cerebras.Cerebras(), cerebras.FIELDS),
    "novita": (novita.Novita(), novita.FIELDS),
}


def body(field: Field[Any], value: object) -> bytes:
    outer, _, inner = field.name.rpartition(".")
    sent: dict[str, Any] = {"prompt": "a", **({outer: {inner: value}} if outer else {inner: value})}
    if "stream_options" in field.name:
        sent["stream"] = True
    return json.dumps(sent).encode()


def parse(dialect: str, data: bytes) -> Parsed:
    return DIALECTS[dialect][0].parse(data, fresh_seed=7)


@pytest.mark.fault("A03")
@pytest.mark.parametrize(("dialect", "field", "value"), each(DIALECTS, lambda field: [None]))
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


@pytest.mark.fault("A02", "A04")
@pytest.mark.parametrize(("dialect", "field", "value"), each(DIALECTS, lambda field: WRONG[type(field.kind)]))
def test_a_value_of_the_wrong_type_is_refused_by_name(dialect: str, field: Field[Any], value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(dialect, body(field, value))
    assert caught.value.param.startswith(field.name)
    assert caught.value.code == "invalid_type"


@pytest.mark.fault("A08")
@pytest.mark.parametrize(("dialect", "field", "value"), each(DIALECTS, lambda field: bounds(field.kind)[1]))
def test_a_value_outside_the_range_is_refused_by_name(dialect: str, field: Field[Any], value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(dialect, body(field, value))
    assert caught.value.param.startswith(field.name)
    assert len(str(caught.value)) < 300


@pytest.mark.fault("A08")
@pytest.mark.parametrize(("dialect", "field", "value"), each(DIALECTS, lambda field: bounds(field.kind)[0]))
def test_a_value_at_the_bound_is_taken_or_said_to_be_not_supported(dialect: str, field: Field[Any], value: object) -> None:
    if field.status is not Status.LATER or field.kind.read(field.name, value) == field.default:
        parse(dialect, body(field, value))
        return
    with pytest.raises(Unsupported, match="is not supported") as caught:
        parse(dialect, body(field, value))
    assert caught.value.param == field.name


@pytest.mark.parametrize(("dialect", "field", "value"), each(DIALECTS, lambda field: bounds(field.kind)[0]))
def test_what_is_taken_is_offered_by_the_engine(dialect: str, field: Field[Any], value: object) -> None:
    try:
        request = parse(dialect, body(field, value)).request
    except Unsupported:
        return
    try:
        asyncio.run(service(Checking()).prepare(request))
    except BadRequest as error:
        assert not isinstance(error, Unsupported) or error.param == "suffix", str(error)  # which depends on the model


def test_the_openai_table_has_every_field_of_the_page() -> None:
    page = "model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream stream_options"
    members = {"stream_options.include_usage", "stream_options.include_obfuscation"}
    assert {field.name for field in openai.FIELDS} == {*page.split(), *members, "suffix", "temperature", "top_p", "user"}


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
    assert table_in_docs(dialect) == table(DIALECTS[dialect][1]).strip()
