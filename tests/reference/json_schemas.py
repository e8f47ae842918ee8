"""Random JSON Schemas of draft 2020-12: what people use, and some of what no mask can enforce.

Not by hypothesis-jsonschema, which makes values of a schema: a schema of schemas is recursive, which it refuses.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]
Schemas = st.SearchStrategy[Schema]

VALUES: list[Any] = [None, True, 0, 1, -2.5, 1e6, "a", "", 'q"\\/\n', "é😀", [1], [], {"k": "é"}, {"a": [1, "x"]}]
PATTERNS = [r"^[a-f]{1,4}$", r"^\d{2,4}$", "[aeiou]", "^(?:yes|no)$", '^[^"\\\\]{1,5}$', r"\s", r"^\S+@\S$", "^.{3}$", "b|^a", r"\W"]
FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
NAMES = ["a", "b", "name", "a/b", 'q"', "é", "extends", "type", "$ref", "x1"]


def _bounds(low: str, high: str, least: st.SearchStrategy[Any], more: st.SearchStrategy[Any]) -> Schemas:
    """Both, one or none of two bounds, in order."""

    def build(first: Any, size: Any, kept: set[str]) -> Schema:
        return {key: value for key, value in ((low, first), (high, first + size)) if key in kept}

    return st.builds(build, least, more, st.sets(st.sampled_from([low, high])))


def _all(*parts: Schemas | Schema) -> Schemas:
    """One schema with the keywords of several."""
    made = [part if isinstance(part, st.SearchStrategy) else st.just(part) for part in parts]
    return st.tuples(*made).map(lambda each: {key: value for part in each for key, value in part.items()})


def _some(**keywords: Any) -> Schemas:
    """Some of these keywords."""
    made = {key: value if isinstance(value, st.SearchStrategy) else st.just(value) for key, value in keywords.items()}
    return st.fixed_dictionaries({}, optional=made)


def _close(low: str, high: str, whole: int, size: float, above: bool) -> Schema:
    """Two bounds near to each other, of which one is whole."""
    return {low: whole, high: whole + size} if above else {low: whole - size, high: whole}


SMALL = st.integers(0, 3)
NUMBERS = st.one_of(
    _all(
        {"type": "integer"},
        _bounds("minimum", "maximum", st.integers(-999, 99), st.integers(0, 2000)),
        _some(multipleOf=st.integers(1, 12)),
    ),
    _all(
        {"type": "number"},
        _bounds("minimum", "exclusiveMaximum", st.floats(-99, 99).map(lambda value: round(value, 2)), st.integers(1, 50)),
        _some(multipleOf=st.sampled_from([0.5, 0.25, 3])),
    ),
    _all(
        st.sampled_from([{"type": "number"}, {"type": "integer"}, {}]),
        st.builds(
            _close,
            st.sampled_from(["minimum", "exclusiveMinimum"]),
            st.sampled_from(["maximum", "exclusiveMaximum"]),
            st.sampled_from([0, 1, -1, 2, -2, 10, -10, 287, 907, -907, 12345678901234, -12345678901234]),
            st.sampled_from([0.0625, 0.125, 0.25, 0.5, 1, 1.5, 3]),
            st.booleans(),
        ),
        _some(multipleOf=st.sampled_from([0.5, 0.25, 3])),
    ),
)
STRINGS = st.one_of(
    _all({"type": "string"}, _bounds("minLength", "maxLength", SMALL, SMALL)),
    _all({"type": "string"}, st.sampled_from(PATTERNS).map(lambda pattern: {"pattern": pattern}), _some(maxLength=st.integers(4, 9))),
    st.sampled_from(FORMATS).map(lambda name: {"type": "string", "format": name}),
)
PLAIN = st.one_of(
    NUMBERS,
    STRINGS,
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=4, unique_by=repr).map(lambda values: {"enum": values}),
    st.sampled_from(VALUES).map(lambda value: {"const": value}),
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["string", "null"], "maxLength": 2}, {"type": ["integer", "array"]}]),
)


def _objects(inner: Schemas) -> Schemas:
    def build(properties: Schema, required: set[str], extra: Any) -> Schema:
        return {"type": "object", "properties": properties, "required": sorted(required & properties.keys()), "additionalProperties": extra}

    declared = st.builds(
        build, st.dictionaries(st.sampled_from(NAMES), inner, max_size=4), st.sets(st.sampled_from(NAMES)), st.one_of(st.booleans(), inner)
    )
    others = _some(
        patternProperties=st.dictionaries(st.sampled_from(["^x", "[0-9]$", r"^[^_]\w$"]), inner, max_size=1),
        minProperties=st.integers(0, 2),
        maxProperties=st.integers(1, 5),
    )
    return _all(declared, others | st.just({}))


def _arrays(inner: Schemas) -> Schemas:
    listed = _all({"type": "array"}, st.builds(lambda items: {"items": items}, inner), _bounds("minItems", "maxItems", SMALL, SMALL))
    first = st.lists(inner, min_size=1, max_size=3)
    tuples = _all(
        {"type": "array"},
        st.builds(lambda head, rest: {"prefixItems": head, "items": rest}, first, inner | st.booleans()),
        _some(minItems=SMALL),
    )
    return listed | tuples


def _combined(inner: Schemas) -> Schemas:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(*(st.fixed_dictionaries({key: several}) for key in ("anyOf", "anyOf", "allOf", "oneOf")))


def _unenforced(inner: Schemas) -> Schemas:
    """Some of which a guide must refuse, or enforce."""
    keywords = _some(**{"not": inner, "if": inner, "uniqueItems": st.booleans(), "contains": inner, "propertyNames": STRINGS})
    return _all(inner, keywords)


def _recursive(inner: Schemas) -> Schemas:
    def build(leaf: Schema) -> Schema:
        tree = {"type": "object", "properties": {"leaf": leaf, "next": {"$ref": "#/$defs/tree"}}, "additionalProperties": False}
        return {"$ref": "#/$defs/tree", "$defs": {"tree": tree}}

    return inner.map(build)


ENFORCEABLE = st.recursive(PLAIN, lambda inner: _objects(inner) | _arrays(inner) | _combined(inner), max_leaves=6)
"""Schemas of which most can be enforced."""

SCHEMAS = st.one_of(ENFORCEABLE, ENFORCEABLE, ENFORCEABLE, _objects(PLAIN), _recursive(PLAIN), _unenforced(ENFORCEABLE))
"""All kinds."""
