"""Numbers of a schema: what its bounds and steps admit is valid by an independent validator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal

import jsonschema_rs
import pytest
from hypothesis import given, settings
from tests.guides.test_guide import SCHEMA, matcher
from tests.guides.test_suite import follows
from tests.reference.json_schemas import NUMBERS, Schema

from quintet.guides.protocol import GuideError
from quintet.guides.translate import translate, verify

STEPS = [Decimal(sign + step) for step in ("0", "0.01", "0.25", "0.5", "1", "0.0000001", f"{'0.'.ljust(330, '0')}1") for sign in "+-"]
"""The last is 0 where it is read as a double."""


def near(schema: Schema) -> Iterator[str]:
    """Numbers at a schema's bounds and on both sides, as texts."""
    for key, bound in schema.items():
        if key == "multipleOf" or isinstance(bound, str):
            continue
        for step in STEPS:
            text = format(Decimal(repr(bound)) + step, "f")
            yield from (text, f"{text}0" if "." in text else f"{text}.0", f"-{text}")


def invalid(schema: Schema) -> list[str]:
    """Texts that a schema's guide admits and its validator does not."""
    verify(SCHEMA, translate(SCHEMA, json.dumps(schema)))
    start, valid = matcher(SCHEMA, schema), jsonschema_rs.Draft202012Validator(schema).is_valid
    return [text for text in near(schema) if follows(start.copy(), text.encode()) and not valid(json.loads(text))]


@pytest.mark.fault("H10")
@pytest.mark.parametrize(
    ("schema", "inside"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, ["0.5", "0.05", "0.1"]),
        ({"exclusiveMinimum": 1, "maximum": 1.5}, ["1.5", "1.01"]),
        ({"exclusiveMinimum": 287, "maximum": 287.1}, ["287.1", "287.05"]),
        ({"exclusiveMinimum": 907, "maximum": 907.01}, ["907.01", "907.001"]),
        ({"exclusiveMaximum": 0, "minimum": -0.5}, ["-0.5", "-0.01"]),
        ({"exclusiveMaximum": -1, "minimum": -1.25}, ["-1.25", "-1.1"]),
        ({"exclusiveMinimum": -1, "maximum": -0.5}, ["-0.5", "-0.99"]),
        ({"exclusiveMaximum": 1, "minimum": 0.5}, ["0.5", "0.99"]),
        ({"exclusiveMinimum": 0, "maximum": 1, "multipleOf": 0.25}, ["0.25", "0.75", "1"]),
        ({"exclusiveMinimum": 0}, ["1", "0.00001", "12345.5"]),
        ({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}, ["0.5", "0.1"]),
    ],
)
def test_a_whole_bound_that_is_excluded_is_not_admitted_where_the_other_is_near(schema: Schema, inside: list[str]) -> None:
    numbers = {"type": "number", **schema}
    bounds = {key: bound for part in schema.get("allOf", [schema]) for key, bound in part.items()}
    excluded = next(bound for key, bound in bounds.items() if key.startswith("exclusive"))
    start = matcher(SCHEMA, numbers)
    texts = [*inside, *(f"{sign}{excluded}{more}" for sign in ("", "-") for more in ("", ".0", ".00"))]
    assert [text for text in texts if follows(start.copy(), text.encode())] == inside


@pytest.mark.fault("H10")
@settings(max_examples=100)
@given(NUMBERS)
def test_numbers_that_a_schema_admits_are_valid(schema: Schema) -> None:
    with suppress(GuideError):  # no number is between the bounds, say
        assert invalid(schema) == []
