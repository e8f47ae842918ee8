"""What can be begun and never be ended is refused, or is no way to go."""

from __future__ import annotations

import json
import random

import pytest
from tests.guides.test_guide import GRAMMAR, SCHEMA, verdict

from quintet.guides.endless import ROUNDS, ending_rules, endless
from quintet.guides.gbnf import read
from quintet.guides.protocol import GuideError
from quintet.guides.schema import SchemaError, enforceable
from quintet.guides.translate import translate

NEXT = {"$ref": "#/$defs/n"}
LIST = {"type": "object", "properties": {"next": NEXT}, "required": ["next"], "additionalProperties": False}
"""A list whose last member has a next one too."""


def accepted(schema: dict[str, object], texts: list[str]) -> list[str]:
    return [text for text in texts if verdict(SCHEMA, {"$defs": {"n": LIST}, **schema}, text) == "accepted"]


@pytest.mark.fault("B12")
@pytest.mark.parametrize(
    "schema",
    [
        NEXT,
        {"allOf": [{"type": "object"}, NEXT]},
        {"anyOf": [NEXT, {"type": "array", "items": NEXT, "minItems": 1}]},
        {"type": "object", "properties": {"a": NEXT}, "required": ["a"]},
        {"type": "object", "additionalProperties": NEXT, "required": ["a"]},
        {"type": ["array", "object"], "prefixItems": [{}, NEXT], "minItems": 2, "properties": {"a": NEXT}, "required": ["a"]},
        {"type": "array", "items": [{}], "additionalItems": NEXT, "minItems": 2},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    ],
)
def test_a_schema_that_no_value_that_ends_fits_is_refused(schema: dict[str, object]) -> None:
    with pytest.raises(SchemaError, match="a value that ends"):
        enforceable({"$defs": {"n": LIST}, **schema})


@pytest.mark.fault("B12", "H10")
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {
            "oneOf": [{"type": "integer"}, {"$ref": "#/$defs/a"}],
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
        },
    ],
)
def test_a_schema_that_is_nothing_but_itself_is_refused(schema: dict[str, object]) -> None:
    """Validators differ in what fits it."""
    with pytest.raises(SchemaError, match=r"must not use \$ref in a circle"):
        enforceable(schema)


@pytest.mark.fault("B12", "H10")
@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"anyOf": [NEXT, {"type": "null"}]}, ["null"], ['{"next":{"next":']),
        ({"type": "object", "properties": {"a": NEXT, "b": {"type": "null"}}, "additionalProperties": False}, ['{"b":null}'], ['{"a":']),
        ({"type": "array", "items": NEXT}, ["[]"], ["[{"]),
        ({"type": "array", "prefixItems": [{"type": "null"}, NEXT]}, ["[null]"], ["[null,"]),
        ({"type": "object", "patternProperties": {"^a": NEXT}, "additionalProperties": False}, ["{}"], ['{"a":']),
        (
            {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]},
            ['{"next":null}'],
            [],
        ),
        ({"enum": [{"next": 1}]}, ['{"next":1}'], []),
    ],
)
def test_what_never_ends_is_no_way_to_go_where_there_is_another(schema: dict[str, object], inside: list[str], outside: list[str]) -> None:
    assert accepted(schema, inside + outside) == inside
    for text in outside:
        assert verdict(SCHEMA, {"$defs": {"n": LIST}, **schema}, text) == "rejected"


@pytest.mark.parametrize(
    "grammar", ['root ::= "a" root', 'root ::= "(" root ")" | x\nx ::= "b" x', 'root ::= "a" x+\nx ::= "b" x', "root ::= root"]
)
def test_a_grammar_without_a_text_that_ends_is_refused(grammar: str) -> None:
    with pytest.raises(GuideError, match="root has no text that ends"):
        translate(GRAMMAR, grammar)


def test_a_rule_that_never_ends_is_left_out_of_a_grammar() -> None:
    grammar = 'root ::= "a" x* ("b" | x "c") | x\nx ::= "d" x'
    assert [text for text in ("ab", "ad", "d", "adc") if verdict(GRAMMAR, grammar, text) == "accepted"] == ["ab"]
    assert verdict(GRAMMAR, grammar, "ad") == "rejected"
    rules = read('root ::= "a" | root "b"')
    assert ending_rules(rules) is rules


def test_chains_in_any_order_are_followed() -> None:
    """Each name needs the one after it; the last of them ends, or begins anew."""
    order = list(range(1000))
    for names in (order, order[::-1]):
        assert endless(map(str, names), lambda name, found: name == "999" or str(int(name) + 1) in found) == set()
        assert len(endless(map(str, names), lambda name, found: str((int(name) + 1) % 1000) in found)) == 1000
    random.Random(1).shuffle(order)
    looked = 0

    def ends(name: str, found: object) -> bool:
        nonlocal looked
        looked += 1
        assert isinstance(found, set)
        return name == "999" or str(int(name) + 1) in found

    assert endless(map(str, order), ends) == set()
    assert looked <= ROUNDS * len(order)


def test_names_of_members_are_no_references() -> None:
    assert enforceable(json.loads('{"type":"object","properties":{"$ref":{"type":"string"}},"required":["$ref"]}'))
