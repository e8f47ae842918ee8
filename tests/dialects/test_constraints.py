"""Constraints of the output under the names of other servers: which guide each asks for, and that none is ever ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quintet.dialects import constraints
from quintet.dialects.catalog import PROVIDERS
from quintet.errors import BadRequest, Unsupported
from quintet.guides import schema as schemas
from quintet.request import Guide, GuideKind

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))
GRAMMAR = 'root ::= "yes" | "no"'

ASKED: dict[str, tuple[dict[str, object], GuideKind, str]] = {
    "response_format": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
        GuideKind.JSON_SCHEMA,
        TEXT,
    ),
    "structured_outputs.json": ({"structured_outputs": {"json": TEXT}}, GuideKind.JSON_SCHEMA, TEXT),
    "structured_outputs.regex": ({"structured_outputs": {"regex": "a+", "json": None}}, GuideKind.REGEX, "a+"),
    "structured_outputs.choice": ({"structured_outputs": {"choice": ["yes", "no"]}}, GuideKind.CHOICE, '["yes", "no"]'),
    "structured_outputs.grammar": ({"structured_outputs": {"grammar": GRAMMAR}}, GuideKind.GRAMMAR, GRAMMAR),
    "structured_outputs.json_object": ({"structured_outputs": {"json_object": True}}, GuideKind.JSON_OBJECT, ""),
    "guided_json": ({"guided_json": SCHEMA}, GuideKind.JSON_SCHEMA, TEXT),
    "guided_regex": ({"guided_regex": "a+", "guided_decoding_backend": "outlines"}, GuideKind.REGEX, "a+"),
    "guided_choice": ({"guided_choice": ["yes", "no"]}, GuideKind.CHOICE, '["yes", "no"]'),
    "guided_grammar": ({"guided_grammar": GRAMMAR}, GuideKind.GRAMMAR, GRAMMAR),
    "json_schema": ({"json_schema": TEXT}, GuideKind.JSON_SCHEMA, TEXT),
    "regex": ({"regex": "a+"}, GuideKind.REGEX, "a+"),
    "ebnf": ({"ebnf": GRAMMAR}, GuideKind.GRAMMAR, GRAMMAR),
    "grammar": ({"grammar": GRAMMAR}, GuideKind.GRAMMAR, GRAMMAR),
}


def guide(dialect: str, **fields: object) -> Guide | None:
    parsed = PROVIDERS[dialect].dialect.parse(json.dumps({"model": "m", "prompt": "a", **fields}).encode(), 7)
    return parsed.request.guide


@pytest.mark.parametrize("dialect", PROVIDERS)
@pytest.mark.parametrize("name", ASKED)
def test_each_name_asks_for_its_guide_in_every_dialect(dialect: str, name: str) -> None:
    fields, kind, text = ASKED[name]
    assert guide(dialect, **fields) == Guide(kind, text, name)


@pytest.mark.parametrize("dialect", PROVIDERS)
@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (SCHEMA, TEXT),
        ({}, '{"allOf":[{"type":"object"}]}'),
        ({"minimum": 0}, '{"minimum":0,"allOf":[{"type":"object"}]}'),
        ({"type": ["object", "null"]}, '{"type":["object","null"],"allOf":[{"type":"object"}]}'),
        ({"allOf": [{"required": ["a"]}], "minimum": 0}, '{"allOf":[{"required":["a"]},{"type":"object"}],"minimum":0}'),
        ({"allOf": 1}, '{"allOf":1}'),
    ],
)
def test_an_object_with_a_schema_is_an_object_whatever_the_schema_admits(dialect: str, schema: dict[str, object], text: str) -> None:
    for name in ("schema", "json_schema"):
        asked = guide(dialect, response_format={"type": "json_object", name: schema})
        assert asked == Guide(GuideKind.JSON_SCHEMA, text, "response_format")
    plain = guide(dialect, response_format={"type": "json_schema", "json_schema": schema})
    assert plain == Guide(GuideKind.JSON_SCHEMA, json.dumps(schema, separators=(",", ":")), "response_format")


@pytest.mark.parametrize("dialect", PROVIDERS)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "a", "ebnf": GRAMMAR}, "ebnf"),
        ({"response_format": {"type": "json_object"}, "guided_json": SCHEMA}, "guided_json"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
    ],
)
def test_two_constraints_are_refused_by_the_second_ones_name(dialect: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest, match="must not be given together with") as caught:
        guide(dialect, **fields)
    assert caught.value.param == param


def test_a_constraint_beside_the_providers_own_is_refused() -> None:
    with pytest.raises(BadRequest, match="together with grammar_root"):
        guide("cerebras", grammar_root="object", response_format={"type": "json_object"})


@pytest.mark.parametrize("dialect", PROVIDERS)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structural_tag": {"type": "structural_tag"}}, "structural_tag"),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": "x"}, "guided_whitespace_pattern"),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": ""}, "guided_whitespace_pattern"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"stop_regex": "and|or"}, "stop_regex"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"no_stop_trim": True}, "no_stop_trim"),
        ({"repetition_detection": {"max_pattern_size": 8, "min_count": 3}}, "repetition_detection"),
        ({"lora_path": "adapter"}, "lora_path"),
        ({"custom_logit_processor": "{}"}, "custom_logit_processor"),
        ({"grammar": GRAMMAR, "grammar_lazy": True}, "grammar_lazy"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "x"}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": ""}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"json": SCHEMA, "a\nb": 1}}, r"structured_outputs.a\nb"),
    ],
)
def test_what_is_not_kept_is_refused_by_name(dialect: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Unsupported) as caught:
        guide(dialect, **fields)
    assert caught.value.param == param


NOTHING: dict[str, list[object]] = {
    "skip_special_tokens": [True, None],
    "spaces_between_special_tokens": [True, False, None],
    "priority": [0, None],
    "no_stop_trim": [False, None],
    "return_hidden_states": [False, None],
    "repetition_detection": [None, {}, {"max_pattern_size": 0}, {"max_pattern_size": 0, "min_pattern_size": 0, "min_count": 0}],
    "structural_tag": [None, ""],
    "custom_logit_processor": [None, ""],
    "lora_path": [None, ""],
    "stop_regex": [None, [], ""],
    "prompt_embeds": [None],
    "guided_whitespace_pattern": [None],
    "grammar_lazy": [False],
    "grammar_triggers": [[]],
}


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_what_asks_for_nothing_is_neither_refused_nor_called_unknown(dialect: str) -> None:
    """Clients of vLLM and SGLang send those servers' defaults along."""
    members = {"whitespace_pattern": None, "structural_tag": None, "disable_any_whitespace": False, "disable_additional_properties": False}
    given: list[dict[str, object]] = [{name: value} for name, values in NOTHING.items() for value in values]
    given.append({"structured_outputs": {"regex": "a", **members}})
    for fields in given:
        parsed = PROVIDERS[dialect].dialect.parse(json.dumps({"model": "m", "prompt": "a", **fields}).encode(), 7)
        assert (parsed.ignored, parsed.unheeded) == ((), ()), fields


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_what_asks_for_more_than_there_is_but_for_no_other_text_is_unknown(dialect: str) -> None:
    body = {"model": "m", "prompt": "a", "priority": 3, "return_hidden_states": True}
    assert sorted(PROVIDERS[dialect].dialect.parse(json.dumps(body).encode(), 7).ignored) == ["priority", "return_hidden_states"]


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_a_member_that_no_server_has_is_unknown_though_it_asks_for_nothing(dialect: str) -> None:
    body = {"model": "m", "prompt": "a", "structured_outputs": {"regex": "a", "jsno": None}}
    assert PROVIDERS[dialect].dialect.parse(json.dumps(body).encode(), 7).ignored == ("structured_outputs.jsno",)


@pytest.mark.parametrize("dialect", PROVIDERS)
@pytest.mark.parametrize(
    "name", ["guided_regex", "guided_grammar", "regex", "ebnf", "structured_outputs.regex", "structured_outputs.grammar"]
)
def test_an_empty_constraint_is_not_as_good_as_none(dialect: str, name: str) -> None:
    """Only the empty text would conform to it; any other came."""
    outer, _, inner = name.partition(".")
    with pytest.raises(BadRequest, match="must not be empty") as caught:
        guide(dialect, **{outer: {inner: ""} if inner else ""})
    assert caught.value.param == name


@pytest.mark.fault("A20")
@pytest.mark.parametrize("dialect", PROVIDERS)
@pytest.mark.parametrize("inner", [None, False, True, [], 123, "not JSON", "[1]"])
def test_what_is_no_schema_where_one_belongs_is_refused_and_not_taken_for_one_around_it(dialect: str, inner: object) -> None:
    """JSON Schema knows no keyword of that wrapping, so anything at all would conform."""
    for name, fields in (
        ("response_format.json_schema", {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": inner}}}),
        ("guided_json", {"guided_json": {"schema": inner, "strict": True}}),
        ("guided_json", {"guided_json": {"schema": inner, "title": "t", "more": 1}}),
        ("json_schema", {"json_schema": json.dumps({"schema": inner})}),
    ):
        with pytest.raises(BadRequest) as caught:
            guide(dialect, **fields)
        assert caught.value.param == f"{name}.schema"


@pytest.mark.fault("A20")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"type": "object",}', r"it is not valid JSON: .* \(line 1, column 19\)"),
        ("[]", r"it must be a JSON object, got \[\]"),
        ('{"items": {"a": 1, "a": 2}}', r"'items\.a' in it is given more than once"),
        ('{"minimum": 1e999}', "'minimum' in it must be a finite number"),
        ('{"items":' * 70 + "{}" + "}" * 70, ".* in it is nested deeper than 64 levels"),
        ('{"minimum": ' + "1" * 70_000 + "}", "it has over 65536 bytes and must have no number of more than 100 digits"),
    ],
)
def test_what_is_wrong_with_a_schema_in_a_string_is_told(text: str, why: str) -> None:
    with pytest.raises(BadRequest, match=f"'guided_json' must hold one JSON object; {why}") as caught:
        guide("openai", guided_json=text)
    assert caught.value.param == "guided_json"


@pytest.mark.fault("A20")
@pytest.mark.parametrize("dialect", PROVIDERS)
@pytest.mark.parametrize("wrapping", [{"name": "n"}, {"name": "n", "strict": True}, {"strict": True, "description": "d"}])
def test_a_wrapping_with_nothing_in_it_is_refused(dialect: str, wrapping: dict[str, object]) -> None:
    with pytest.raises(BadRequest) as caught:
        guide(dialect, response_format={"type": "json_schema", "json_schema": wrapping})
    assert caught.value.param == "response_format.json_schema.schema"


@pytest.mark.parametrize(
    "wrapped",
    [
        {"name": "n", "schema": TEXT},
        {"name": "n", "schema": SCHEMA, "strict": True, "description": "d", "more": 1},
        {"schema": SCHEMA},
        {"schema": SCHEMA, "strict": True, "title": "t", "$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"schema": SCHEMA, "more": 1},
        {"type": "json_schema", "name": "n", "schema": SCHEMA},
    ],
)
def test_a_schema_is_found_in_openais_wrapping(wrapped: dict[str, object]) -> None:
    for inside in (wrapped, json.dumps(wrapped)):
        found = guide("openai", response_format={"type": "json_schema", "json_schema": inside})
        assert found is not None and json.loads(found.text) == SCHEMA


@pytest.mark.parametrize("more", [{"schema": SCHEMA}, {"schema": None, "name": "n"}, {"name": "n"}, {"strict": True}, {"title": "t"}])
def test_what_restricts_by_itself_is_the_schema_whatever_else_it_has(more: dict[str, object]) -> None:
    """Words that are no keywords of JSON Schema mean nothing in one."""
    for schema in ({**SCHEMA, **more}, {"anyOf": [SCHEMA], **more}):
        found = guide("openai", guided_json=schema)
        assert found is not None and json.loads(found.text) == schema


@pytest.mark.parametrize("beside", [{"maximum": 5}, {"required": ["a"], "strict": True}, {"type": "object", "properties": {}}])
def test_what_restricts_beside_a_schema_in_its_wrapping_is_refused_by_name(beside: dict[str, object]) -> None:
    """It was dropped, and answers broke it."""
    for dialect in ("openai", "fireworks"):
        with pytest.raises(BadRequest, match="must stand inside 'schema'") as refused:
            guide(dialect, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, **beside}})
        assert str(refused.value.param).endswith(f".{min(beside)}" if "strict" not in beside else ".required")


def test_a_schema_that_admits_anything_is_one() -> None:
    for schema in ({}, {"title": "t"}):
        found = guide("openai", guided_json=schema)
        assert found is not None and json.loads(found.text) == schema


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_an_object_without_a_constraint_is_refused_and_an_empty_one_of_llama_server_is_none(dialect: str) -> None:
    for empty in ({}, {"regex": None}, {"json_object": False}):
        with pytest.raises(BadRequest, match=r"structured_outputs.*must have one of"):
            guide(dialect, structured_outputs=empty)
    assert guide(dialect, grammar="", response_format={"type": "text"}, guided_json=None, grammar_lazy=False) is None


def test_what_a_guide_refuses_in_a_schema_is_refused_beside_its_wrapping_too() -> None:
    assert schemas._IGNORED - {"x-guidance"} <= constraints._RESTRICTING
