"""Schemas: no keyword is passed over, whatever stands beside it and whichever draft it is of."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest
from tests.guides.test_guide import SCHEMA, verdict

from quintet.guides.protocol import GuideError
from quintet.guides.translate import translate, verify

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
ALL: list[object] = [{"minItems": 0}]
DRAFTS = [
    *(f"http://json-schema.org/draft-{number}/schema#" for number in ("04", "06", "07")),
    *(f"https://json-schema.org/draft/{name}/schema" for name in ("2019-09", "2020-12")),
    "https://example.org/a-draft-of-our-own",
]


def accepted(schema: dict[str, object], texts: list[str]) -> list[str]:
    return [text for text in texts if verdict(SCHEMA, schema, text) == "accepted"]


def test_bounds_and_a_step_bound_a_numbers_digits_and_nothing_else_does() -> None:
    """As docs/guides/json.md tells; should the compiler learn to bound a plain number, the page is to be amended."""
    texts = ["1e9544", "1" * 400, "0.1234567890123456789", "0.12", "99"]
    assert accepted({"type": "number"}, texts) == texts
    assert accepted({"type": "integer"}, texts) == ["1" * 400, "99"]
    bounds: dict[str, object] = {"type": "number", "minimum": 0, "maximum": 100}
    assert accepted(bounds, texts) == ["0.1234567890123456789", "0.12", "99"]
    assert accepted({**bounds, "multipleOf": 0.01}, texts) == ["0.12", "99"]


@pytest.mark.fault("H10")
@pytest.mark.parametrize("between", [{"anyOf": ALL}, {"allOf": ALL}, {"oneOf": ALL}, {"$ref": "#/$defs/all"}])
@pytest.mark.parametrize(
    ("one", "other", "inside", "outside"),
    [
        ({"items": [STRING]}, {"additionalItems": False}, ["[]", '["a"]'], ['["a",1]', "[1]"]),
        ({"prefixItems": [STRING]}, {"items": INTEGER}, ["[]", '["a",1]'], ['["a","b"]', "[1]"]),
        ({"minimum": 5}, {"exclusiveMinimum": True}, ["5.1", "6"], ["5", "4"]),
        ({"maximum": 5}, {"exclusiveMaximum": True}, ["4.9", "4"], ["5", "6"]),
        ({"patternProperties": {"^x": INTEGER}}, {"additionalProperties": False}, ["{}", '{"x1":1}'], ['{"a":1}', '{"x":"a"}']),
        ({"properties": {"a": INTEGER}}, {"additionalProperties": False}, ["{}", '{"a":1}'], ['{"b":1}', '{"a":"a"}']),
    ],
)
def test_keywords_that_need_each_other_hold_whatever_stands_between_them(
    one: dict[str, object], other: dict[str, object], between: dict[str, object], inside: list[str], outside: list[str]
) -> None:
    for order in ((one, between, other), (other, between, one)):
        schema = {"$defs": {"all": ALL[0]}, **order[0], **order[1], **order[2]}
        assert accepted(schema, inside + outside) == inside, schema


def test_members_come_in_the_order_in_which_the_schema_names_them() -> None:
    """Keywords that need each other are put together; what orders members stays where it is."""
    first, second = {"properties": {"a": INTEGER}, "required": ["a"]}, {"properties": {"b": INTEGER}, "required": ["b"]}
    rest = {"additionalProperties": INTEGER, "patternProperties": {"^x": STRING}}
    assert accepted({"allOf": [first], **second, **rest}, ['{"a":1,"b":1}', '{"b":1,"a":1}']) == ['{"a":1,"b":1}']
    assert accepted({**second, "allOf": [first], **rest}, ['{"a":1,"b":1}', '{"b":1,"a":1}']) == ['{"b":1,"a":1}']


@pytest.mark.fault("H10")
def test_additional_items_say_nothing_where_items_are_no_array_and_hide_no_others() -> None:
    valid = jsonschema_rs.Draft202012Validator
    for more in ({}, {"items": INTEGER}, {"items": False}):
        schema = {"type": "array", "prefixItems": [STRING], **more, "additionalItems": False}
        texts = ["[]", "[1]", '["a"]', '["a",1]', '["a","b"]']
        assert accepted(schema, texts) == [text for text in texts if valid(schema).is_valid(json.loads(text))]


def test_two_arrays_for_the_same_items_are_refused() -> None:
    with pytest.raises(GuideError, match="prefixItems beside an array in items"):
        translate(SCHEMA, json.dumps({"type": "array", "prefixItems": [STRING], "items": [INTEGER]}))


@pytest.mark.fault("H10")
@pytest.mark.parametrize("draft", DRAFTS)
def test_a_keyword_that_is_newer_than_the_draft_is_enforced_or_named_like_any_other(draft: str) -> None:
    assert accepted({"$schema": draft, "const": "a"}, ['"a"', '"b"']) == ['"a"']
    assert accepted({"$schema": draft, "type": "array", "prefixItems": [STRING]}, ['["a"]', "[1]"]) == ['["a"]']
    for keyword, value in (
        *(("dependentRequired", {"a": ["b"]}), ("dependentSchemas", {"a": False}), ("unevaluatedProperties", False)),
        *(("unevaluatedItems", False), ("if", False), ("contains", STRING), ("propertyNames", {"pattern": "b"})),
    ):
        with pytest.raises(GuideError, match=keyword):
            verify(SCHEMA, translate(SCHEMA, json.dumps({"$schema": draft, "type": ["object", "array"], keyword: value})))


@pytest.mark.parametrize("draft", DRAFTS)
def test_what_older_drafts_wrote_otherwise_holds_under_every_draft(draft: str) -> None:
    about = {"$schema": draft, "$id": "#here", "id": "https://example.org/here", "definitions": {"a": INTEGER}}
    assert accepted({**about, "items": [STRING], "additionalItems": False}, ['["a"]', '["a",1]']) == ['["a"]']
    assert accepted({**about, "type": "integer", "minimum": 5, "exclusiveMinimum": True}, ["5", "6"]) == ["6"]
    assert accepted({**about, "properties": {"a": {"$ref": "#/definitions/a"}}}, ['{"a":1}', '{"a":"a"}']) == ['{"a":1}']


@pytest.mark.parametrize(
    ("bound", "exclusive", "inside"), [("minimum", "exclusiveMinimum", "20.23"), ("maximum", "exclusiveMaximum", "20.21")]
)
def test_a_bound_that_an_older_draft_excludes_is_not_reached_as_a_double_either(bound: str, exclusive: str, inside: str) -> None:
    """One digit more is another decimal and the same double."""
    schema = {"type": "number", bound: 20.229999999999997, exclusive: True}
    texts = [inside, "20.2299999999999971", "20.2299999999999969", "20.229999999999997"]
    valid = jsonschema_rs.Draft4Validator(schema).is_valid
    assert accepted(schema, texts) == [text for text in texts if valid(json.loads(text))] == [inside]


@pytest.mark.fault("H10")
@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("int8", ["-128", "127"], ["-129", "128", "1.5"]),
        ("int16", ["-32768", "32767"], ["-32769", "32768"]),
        ("int32", ["-2147483648", "2147483647", "0"], ["-2147483649", "2147483648", "0.5"]),
        ("int64", ["-9223372036854774784", "9223372036854775807"], ["-9223372036854775809", "9223372036854775808"]),
        ("uint8", ["0", "255"], ["-1", "256"]),
        ("uint16", ["65535"], ["-1", "65536"]),
        ("uint32", ["4294967295"], ["-1", "4294967296"]),
        ("uint64", ["9223372036854775807"], ["-1", "18446744073709551616"]),
        ("double-int", ["-9007199254740991", "9007199254740991"], ["9007199254740993"]),
    ],
)
def test_formats_of_numbers_are_bounds(name: str, inside: list[str], outside: list[str]) -> None:
    for types in ("integer", "number", ["integer", "null"]):
        assert accepted({"type": types, "format": name}, inside + outside) == inside


def test_a_number_keeps_its_own_bounds_beside_those_of_its_format() -> None:
    schema = {"type": "integer", "format": "int32", "exclusiveMinimum": 2147483645, "multipleOf": 2}
    assert accepted(schema, ["2147483644", "2147483645", "2147483646", "2147483647", "2147483648"]) == ["2147483646"]


def test_formats_of_strings_that_restrict_nothing_are_taken_and_others_hold_or_are_named() -> None:
    for name in ("binary", "password", "path", "file-path", "directory-path"):
        assert accepted({"type": "string", "format": name, "maxLength": 1}, ['""', '"a"', '"ab"', "1"]) == ['""', '"a"']
    texts = ['""', '"YQ=="', '"YWI="', '"YWJj"', '"YWJjZA=="', '"YQ"', '"YQ="', '"Y-=="', '"YQ==YQ=="']
    assert accepted({"type": "string", "format": "byte"}, texts) == texts[:5]
    for name in ("int32", "regex", "of-our-own", "unknown"):
        for types in ({}, {"type": "string"}, {"type": ["integer", "string"]}):
            with pytest.raises(GuideError, match=name):
                verify(SCHEMA, translate(SCHEMA, json.dumps({**types, "format": name})))
        if name != "int32":
            assert accepted({"type": "integer", "format": name}, ["1", '"a"']) == ["1"]


@pytest.mark.fault("H10")
def test_keywords_that_only_the_first_drafts_had_are_refused_by_name_where_they_restrict_something() -> None:
    old = {"requires": "a", "optional": False, "minimumCanEqual": False, "maximumCanEqual": False, "maxDecimal": 2}
    for keyword, value in old.items():
        with pytest.raises(GuideError, match=keyword):
            translate(SCHEMA, json.dumps({"type": "object", "properties": {"a": {"type": "number", "minimum": 1, keyword: value}}}))
    nothing = {"minimum": 1, "minimumCanEqual": True, "maximum": 2, "maximumCanEqual": True, "optional": True}
    assert accepted({"type": "integer", **nothing}, ["0", "1", "2", "3"]) == ["1", "2"]
    members: dict[str, object] = {"type": "object", "properties": {"requires": INTEGER, "optional": INTEGER}}
    assert accepted(members, ['{"requires":1,"optional":2}', '{"optional":"a"}']) == ['{"requires":1,"optional":2}']


@pytest.mark.fault("H10")
def test_a_reference_to_true_or_false_is_one() -> None:
    """As serde's generators write them: ``"Value": true``."""
    about = {"$defs": {"any": True, "none": False}}
    assert accepted({**about, "$ref": "#/$defs/any"}, ["1", "[null]"]) == ["1", "[null]"]
    assert accepted({**about, "anyOf": [{"$ref": "#/$defs/none"}, {"type": "null"}]}, ["1", "null"]) == ["null"]
    members = {"a": {"$ref": "#/$defs/any"}, "b": {"$ref": "#/$defs/none"}}
    assert accepted({**about, "type": "object", "properties": members}, ["{}", '{"a":[]}', '{"b":1}']) == ["{}", '{"a":[]}']


def test_a_reference_that_is_empty_and_types_that_are_none_are_told_as_what_they_are() -> None:
    with pytest.raises(GuideError, match="must use [$]ref only to point"):
        translate(SCHEMA, '{"$ref": ""}')
    with pytest.raises(GuideError, match="reference to false"):
        translate(SCHEMA, '{"$ref": "#/$defs/none", "$defs": {"none": false}}')
    with pytest.raises(GuideError, match="Unsatisfiable"):
        verify(SCHEMA, translate(SCHEMA, '{"type": []}'))
    with pytest.raises(GuideError, match="type must be a string"):
        verify(SCHEMA, translate(SCHEMA, '{"type": [{"type": "string"}]}'))
