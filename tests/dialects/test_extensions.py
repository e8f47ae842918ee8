"""The fields that every dialect takes beyond its provider's: types, bounds, errors, docs, and that a provider's own field wins."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from tests.dialects.tables import WRONG, bounds

from quintet.dialects import constraints, extensions, openapi, vllm
from quintet.dialects.base import Parsed
from quintet.dialects.catalog import PROVIDERS
from quintet.dialects.constraints import Grammar, Schema
from quintet.dialects.extensions import FIELDS, MirostatVersion
from quintet.dialects.fields import Boolean, Field, Integer, Number, Object, OneOf, Positive, Status, String, shown, table
from quintet.dialects.lists import ListOf
from quintet.dialects.predictions import Predicted
from quintet.dialects.vllm import Early
from quintet.errors import BadRequest
from quintet.inputs.sampling import Limits, resolve_sampling, word_forms
from quintet.request import Dry, Reasoning, Sampling, Shown

DOCS = Path(__file__).parents[2] / "docs" / "dialects"
TAKEN = {name: [field for field in provider.fields if field.status is Status.EXTENSION] for name, provider in PROVIDERS.items()}


NEEDS: dict[str, dict[str, object]] = {
    "response_format": {"type": "text"},
    "response_format.json_schema": {"type": "json_schema"},
    "response_format.schema": {"type": "json_schema"},
    "response_format.grammar": {"type": "grammar"},
    "structured_outputs": {"json_object": True},
}
BESIDE: dict[str, dict[str, object]] = {
    "logprob_token_ids": {"logprobs": 1},
    "length_penalty": {"use_beam_search": True},
    "early_stopping": {"use_beam_search": True},
    "stream_options": {"stream": True},
    "stream_options.continuous_usage_stats": {"stream": True},
}
"""Fields that a field needs beside it."""
"""Members that the object of a field needs beside it, or that it needs itself."""


def parse(dialect: str, **fields: object) -> Parsed:
    """``a.b`` stands for the member ``b`` of ``a``."""
    sent: dict[str, object] = {"model": "m", "prompt": "a"}
    for name, value in fields.items():
        sent |= BESIDE.get(name, {})
        outer, _, inner = name.rpartition(".")
        needs = NEEDS.get(name, {})
        sent[outer or name] = {**needs, inner: value} if outer else {**needs, **value} if isinstance(value, dict) else value
    return PROVIDERS[dialect].dialect.parse(json.dumps(sent).encode(), 7)


def wrong(kind: object) -> list[object]:
    if isinstance(kind, ListOf):
        return [0, 1.5, True, "a", {}, *([one] for one in wrong(kind.kind)), [None]]
    if isinstance(kind, Early):
        return [0, 1, 1.5, [], {}]
    return WRONG[{Positive: Number, MirostatVersion: Integer}.get(type(kind), type(kind))]


def inside_and_outside(kind: object) -> tuple[list[object], list[object]]:
    if isinstance(kind, ListOf):
        inside, outside = inside_and_outside(kind.kind)
        one = inside[-1]
        empty: list[list[object]] = [[]]
        short, enough = (empty, []) if kind.least else ([], empty)
        return [[one], [one] * kind.most, *enough], [[one] * (kind.most + 1), *short, *([bad] for bad in outside)]
    if isinstance(kind, Positive):
        return [1e-9, kind.high], [0, -1, kind.high + 1e-3, 1e308]
    if isinstance(kind, MirostatVersion):
        return [0, 2, 2.0], [1, -1, 3]
    if isinstance(kind, Early):
        return [True, False, "never"], ["", "always"]
    return bounds(kind)


def each(pick: Callable[[Field[Any]], list[object]]) -> list[Any]:
    return [
        pytest.param(dialect, field, value, id=f"{dialect}-{field.name}-{str(value)[:30]}")
        for dialect, fields in TAKEN.items()
        for field in fields
        for value in pick(field)
    ]


@pytest.mark.parametrize(("dialect", "field", "value"), each(lambda field: [None]))
def test_null_means_unset(dialect: str, field: Field[Any], value: object) -> None:
    if "." not in field.name or field is vllm.CONTINUOUS_USAGE:
        assert parse(dialect, **{field.name: value}) == parse(dialect, **BESIDE.get(field.name, {}))
        return
    with pytest.raises(BadRequest) as caught:  # then its object is without what makes a constraint
        parse(dialect, **{field.name: value})
    assert caught.value.param.startswith(field.name.partition(".")[0])


@pytest.mark.fault("A02")
@pytest.mark.parametrize(("dialect", "field", "value"), each(lambda field: wrong(field.kind)))
def test_a_value_of_the_wrong_type_is_refused_by_name_in_the_dialects_own_form(dialect: str, field: Field[Any], value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(dialect, **{field.name: value})
    assert caught.value.param.partition("[")[0] == field.name and caught.value.code == "invalid_type"
    assert field.name in PROVIDERS[dialect].dialect.error(caught.value).body.decode()


@pytest.mark.fault("A08")
@pytest.mark.parametrize(("dialect", "field", "value"), each(lambda field: inside_and_outside(field.kind)[1]))
def test_a_value_outside_the_range_is_refused_by_name(dialect: str, field: Field[Any], value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(dialect, **{field.name: value})
    assert caught.value.param.partition("[")[0] == field.name
    assert len(str(caught.value)) < 300


VOCAB = 2**31


@pytest.mark.parametrize(("dialect", "field", "value"), each(lambda field: inside_and_outside(field.kind)[0]))
def test_a_value_at_the_bound_is_taken_documented_and_one_that_the_engine_takes(dialect: str, field: Field[Any], value: object) -> None:
    try:
        parsed = parse(dialect, **{field.name: value})
    except BadRequest as error:
        # A rule over several fields: a type wants its grammar, and a constraint that is off is none.
        assert (field.name, error.param.partition(".")[0]) in {
            ("response_format.type", "response_format"),
            ("structured_outputs.json_object", "structured_outputs"),
        }
        return
    assert parsed.ignored == ()
    sampling = parsed.request.sampling
    if "" in (*sampling.bad_words, *sampling.dry.breakers):
        return  # what the engine refuses by the same name
    encoded = {form: [1, 2] for form in word_forms(sampling)}
    resolve_sampling(replace(sampling, min_tokens=0), Limits(16, asked=16), encoded, VOCAB)
    assert jsonschema_rs.is_valid(openapi.schema(field.kind), value)


@pytest.mark.parametrize(("dialect", "field", "value"), each(lambda field: inside_and_outside(field.kind)[1]))
def test_the_openapi_document_draws_the_same_bounds(dialect: str, field: Field[Any], value: object) -> None:
    if not isinstance(field.kind, Schema | Grammar | Early):  # what a text holds is beyond a document
        assert not jsonschema_rs.is_valid(openapi.schema(field.kind), value)


EXPECTED: dict[str, tuple[object, dict[str, object]]] = {
    "top_k": (7, {"top_k": 7}),
    "min_p": (0.1, {"min_p": 0.1}),
    "typical_p": (0.5, {"typical_p": 0.5}),
    "top_n_sigma": (1.5, {"top_n_sigma": 1.5}),
    "xtc_probability": (0.5, {"xtc_probability": 0.5}),
    "xtc_threshold": (0.2, {"xtc_threshold": 0.2}),
    "repetition_penalty": (1.2, {"repetition_penalty": 1.2}),
    "dry_multiplier": (0.8, {"dry": Dry(0.8)}),
    "dry_base": (2, {"dry": Dry(base=2.0)}),
    "dry_allowed_length": (3, {"dry": Dry(allowed_length=3)}),
    "dry_penalty_last_n": (64, {"dry": Dry(range=64)}),
    "dry_sequence_breakers": (["a", "b"], {"dry": Dry(breakers=("a", "b"))}),
    "mirostat": (2, {"mirostat_target": 5.0, "mirostat_lr": 0.1}),
    "min_tokens": (3, {"min_tokens": 3}),
    "ignore_eos": (True, {"ignore_eos": True}),
    "stop_token_ids": ([5, 6], {"stop_token_ids": (5, 6)}),
    "allowed_token_ids": ([5, 6], {"allowed_token_ids": (5, 6)}),
    "bad_words": (["x"], {"bad_words": ("x",)}),
}
WITHOUT_EFFECT = {"mirostat_tau", "mirostat_eta"}
OTHERS = {field.name for field in (*constraints.FIELDS, *vllm.FIELDS)}
"""That are no controls of sampling."""


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_each_field_sets_its_control_and_no_other(dialect: str) -> None:
    plain = parse(dialect).request
    for field in TAKEN[dialect]:
        if field.name in EXPECTED:
            value, changed = EXPECTED[field.name]
            expected: Sampling = replace(plain.sampling, **changed)  # type: ignore[arg-type]
            spelled = (("mirostat_target", "mirostat"),) if field.name == "mirostat" else ()
            shown = Shown() if field.name == "stop_token_ids" else None  # the token that ended a choice is told
            assert parse(dialect, **{field.name: value}).request == replace(plain, sampling=expected, spelled=spelled, shown=shown)
        else:
            assert field.name in {*WITHOUT_EFFECT, "thinking_token_budget", "prediction"} or field.name in OTHERS


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_off_is_off_however_it_is_written(dialect: str) -> None:
    off = {"top_k": -1, "top_n_sigma": -1, "mirostat": 0, "mirostat_tau": 3, "thinking_token_budget": -1, "stop_token_ids": []}
    names = {field.name for field in TAKEN[dialect]}
    assert parse(dialect, **{name: value for name, value in off.items() if name in names}) == parse(dialect)


@pytest.mark.parametrize("dialect", ["openai", "together", "cerebras", "novita"])
def test_mirostat_takes_its_own_numbers_and_thinking_its_budget(dialect: str) -> None:
    sampling = parse(dialect, mirostat=2, mirostat_tau=3, mirostat_eta=0.5).request.sampling
    assert (sampling.mirostat_target, sampling.mirostat_lr) == (3.0, 0.5)
    assert parse(dialect, thinking_token_budget=0).request.reasoning == Reasoning(0, "thinking_token_budget")


@pytest.mark.parametrize("dialect", ["openai", "together", "cerebras", "novita"])
def test_a_control_that_single_precision_has_for_0_is_on(dialect: str) -> None:
    """Where 0 is off, the smallest number above it is not."""
    sampling = parse(dialect, mirostat=2, mirostat_tau=1e-50, top_n_sigma=5e-324).request.sampling
    assert (sampling.mirostat_target, sampling.top_n_sigma) == (1e-6, 1e-6)


@pytest.mark.parametrize("dialect", PROVIDERS)
@pytest.mark.parametrize("top_p", [1e-7, 1e-6, 0.5])
def test_a_top_p_that_mirostat_stands_for_is_named_and_makes_nothing_greedy(dialect: str, top_p: float) -> None:
    """However small; by itself the smallest is greedy."""
    on = {"mirostat_target": 9} if dialect == "fireworks" else {"mirostat": 2}
    both, greedy = parse(dialect, temperature=0.7, top_p=top_p, **on), parse(dialect, temperature=0.0, top_p=top_p, **on)
    assert (both.unheeded, both.request.sampling.temperature) == (("top_p",), 0.7)
    assert (greedy.unheeded, greedy.request.sampling.temperature) == ((), 0.0)
    assert (parse(dialect, temperature=0.7, top_p=top_p).request.sampling.temperature == 0) is (top_p < 1e-6)


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_usage_of_a_stream_may_be_asked_for_also_where_it_comes_anyway(dialect: str) -> None:
    """OpenAI's SDK, and what is built on it, asks every provider for it, and vLLM's clients with ``continuous_usage_stats``."""
    asked: list[dict[str, object]] = [
        {"include_usage": True},
        {"include_usage": None},
        {"include_usage": True, "continuous_usage_stats": True},
    ]
    for options in asked:
        assert parse(dialect, stream=True, stream_options=options).ignored == ()
    without = parse(dialect, stream=True, stream_options={"include_usage": False, "include_nothing": True})
    always = ("stream_options.include_usage",) if dialect in ("fireworks", "together") else ()
    assert without.ignored == (*always, "stream_options.include_nothing")
    assert without.request.include_usage is bool(always)


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_a_prediction_is_a_text_or_openais_object_around_one(dialect: str) -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    for given in ("a b", {"type": "content", "content": "a b"}, {"type": "content", "content": parts}):
        assert parse(dialect, prediction=given).request.prediction == "a b"
    assert parse(dialect).request.prediction == parse(dialect, prediction=None).request.prediction == ""


def test_a_provider_keeps_its_own_field_and_its_own_word_for_a_control() -> None:
    own = {name: {field.name for field in provider.fields if field.status is not Status.EXTENSION} for name, provider in PROVIDERS.items()}
    taken = {name: {field.name for field in fields} for name, fields in TAKEN.items()}
    every = {field.name for field in FIELDS}
    assert all(not own[name] & taken[name] for name in PROVIDERS)
    assert every - taken["openai"] == {"stream_options"}
    assert every - taken["together"] == {"top_k", "min_p", "repetition_penalty"}
    assert every - taken["novita"] == {"top_k", "min_p", "repetition_penalty", "stream_options"}
    assert every - taken["cerebras"] == {"min_tokens", "stream_options"}
    assert every - taken["fireworks"] == {
        *("return_token_ids", "response_format", *(f"response_format.{name}" for name in ("type", "json_schema", "schema", "grammar"))),
        *("top_k", "min_p", "typical_p", "repetition_penalty", "ignore_eos", "prediction"),
        *("mirostat", "mirostat_tau", "mirostat_eta", "thinking_token_budget"),
    }
    with pytest.raises(BadRequest, match="between 0 and 100"):
        parse("fireworks", top_k=101)  # and not the extension's bound
    assert parse("cerebras", min_tokens=-1).request.sampling.min_tokens == -1


def test_an_extension_leaves_what_the_provider_has_alone() -> None:
    sampling = parse("fireworks", top_k=9, min_p=0.2, typical_p=0.9, mirostat_target=4, ignore_eos=True, bad_words=["x"]).request.sampling
    without = parse("fireworks", top_k=9, min_p=0.2, typical_p=0.9, mirostat_target=4, ignore_eos=True).request.sampling
    assert sampling == replace(without, bad_words=("x",))


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_the_table_in_the_docs_is_the_one_that_is_enforced(dialect: str) -> None:
    found = re.search(r"<!-- extensions -->\n(.*)<!-- /extensions -->", (DOCS / f"{dialect}.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    assert found[1].strip() == table(TAKEN[dialect]).strip()


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_a_note_or_default_in_the_docs_is_the_dialects_own(dialect: str) -> None:
    """Novita's texts end with the stop string; of the fields that prompt_logprobs do not go with a dialect may have none."""
    taken, own = {field.name: field for field in TAKEN[dialect]}, {field.name for field in PROVIDERS[dialect].fields}
    included = parse(dialect).request.stop.include
    assert (shown(taken["include_stop_str_in_output"]), included) == (f"`{str(included).lower()}`", dialect == "novita")
    named = set(re.findall("`(.*?)`", taken["prompt_logprobs"].note))
    assert named == {"stream", "suffix", "echo_last"} & own


def test_every_kind_is_covered() -> None:
    kinds = {type(field.kind) for field in extensions.FIELDS}
    assert kinds == {Boolean, Integer, Number, Positive, ListOf, MirostatVersion, Object, String, OneOf, Schema, Grammar, Early, Predicted}
    assert {type(field.kind.kind) for field in extensions.FIELDS if isinstance(field.kind, ListOf)} == {Integer, String}
