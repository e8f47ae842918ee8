"""A JSON Schema as the compiler enforces it wholly, or why it cannot. Plain code.

The compiler refuses most of what it does not enforce. What it would take and weaken is refused here, or written in other words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from decimal import Decimal
from typing import TypeGuard

from quintet.guides.endless import endless_places, target
from quintet.guides.lookahead import without_lookahead
from quintet.guides.pattern import PatternError, from_ecma

Part = dict[str, object]

_IGNORED = frozenset(
    {
        *("divisibleBy", "extends", "disallow", "requires", "optional", "minimumCanEqual", "maximumCanEqual", "maxDecimal"),
        "x-guidance",
    }
)
"""Keywords of old drafts that restrict values and that the compiler takes for unknown ones, and the compiler's own options."""

_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_LISTS = frozenset({"anyOf", "allOf", "oneOf", "prefixItems", "items"})
_SCHEMAS = frozenset({"items", "additionalProperties", "additionalItems"})

_NOTHING: Mapping[str, tuple[object, ...]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    # OpenAPI 3.0.4, 4.4: `binary` is "any sequence of octets", `password` "A hint to obscure the value." The others are Pydantic's for
    # paths, and any text is one.
    "format": ("binary", "password", "path", "file-path", "directory-path"),
    **dict.fromkeys(("optional", "minimumCanEqual", "maximumCanEqual"), (True,)),
}
"""Keywords that the compiler or we refuse, with values that restrict nothing, which generators of schemas write."""

_PAIRS = (
    ("patternProperties", "additionalProperties"),
    ("items", "additionalItems"),
    ("minimum", "exclusiveMinimum"),  # draft 4: true there is about the bound here
    ("maximum", "exclusiveMaximum"),
)
_PARTNERS: Mapping[str, str] = dict(_PAIRS) | {second: first for first, second in _PAIRS}
"""Keywords of which one says what the other means. The compiler reads a schema piece by piece, and each ``anyOf``, ``allOf``, ``oneOf``,
``enum``, ``const`` and ``$ref`` ends a piece: what stands behind it is read without what stands before it."""

_DIGITS = 15
"""Every decimal number of fewer is a double's own."""

_WHOLE = 2**53
"""Every integer up to here is a double's own."""

_INT64 = 2**63 - 1
"""The compiler's integers end here: what is larger becomes this one."""

_DATE = (
    r"(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
    r"|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_HOST = "[A-Za-z0-9]+(?:[.-][A-Za-z0-9]+)*"
_LABELS = r"[^.@]{1,63}(?:\.[^.@]{1,63})*"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"

_FORMATS: Mapping[str, tuple[Part, ...]] = {
    "date": ({"pattern": f"^{_DATE}$"},),
    "time": ({"pattern": f"^{_TIME}$"},),
    "date-time": ({"pattern": f"^{_DATE}[Tt]{_TIME}$"},),
    "hostname": ({"pattern": f"^{_HOST}$"}, {"pattern": f"^{_LABELS}$"}, {"maxLength": 253}),
    "email": (
        {"pattern": rf"^{_ATOM}(?:\.{_ATOM})*@{_HOST}$"},
        {"pattern": f"^[^@]{{1,64}}@{_LABELS}$"},
        {"maxLength": 254},
    ),
    # OpenAPI's format registry, byte: "base64 encoded data as defined in RFC4648".
    "byte": ({"pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"},),
}
"""Formats of which the compiler's own form admits more than is valid: the 29th of February of any year (RFC 3339, appendix C), leap
seconds at any minute, names that are too long, or that look like an encoded one and decode to nothing. These admit less: no leap
seconds, nine digits of a second, no two hyphens in a row in a host's name, no quoted or numeric parts of an address."""


def _integers(least: int, most: int) -> Part:
    """What is a number is a whole one, from here to there; all else may come."""
    return {"type": ["integer", "string", "boolean", "null", "array", "object"], "minimum": least, "maximum": most}


_INTEGER_FORMATS: Mapping[str, Part] = {
    **{f"int{bits}": _integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32)},
    **{f"uint{bits}": _integers(0, 2**bits - 1) for bits in (8, 16, 32)},
    "int64": _integers(-(2**63 - 2**10), _INT64),  # the double next to its least
    "uint64": _integers(0, _INT64),
    "double-int": _integers(1 - _WHOLE, _WHOLE - 1),
}
"""OpenAPI's format registry, int32: "signed 32-bit integer", and the like. The compiler looks at formats of strings only, and would admit
any number. These admit less where its own integers end."""


class SchemaError(ValueError):
    """The schema cannot be enforced; ``str(error)`` says why, as a rule: "must ..."."""


def enforceable(schema: Part) -> Part:
    """The same schema, in words of which the compiler enforces each.

    Raises:
        SchemaError: there are none.
    """
    places = dict(_parts("#", schema))
    for place, part in places.items():
        if isinstance(part, dict):
            _refuse(part, nested=place != "#")
        to = target(part)
        if to is not None and to not in places:
            raise SchemaError("must use $ref only to point at a schema inside itself, as in #/$defs/name")
    try:
        never = endless_places(places)
    except ValueError as error:
        raise SchemaError(str(error)) from None
    if "#" in never:
        raise SchemaError("must admit a value that ends: this one leads to itself, whatever is chosen")
    # The compiler takes false where it stands, but gives up where it is referred to, whatever the alternatives.
    made = _rewritten(schema, never | {place for place, part in places.items() if part is False})
    if not isinstance(made, dict):
        raise SchemaError("must admit some value, and is a reference to false")
    return made


def _parts(place: str, schema: object) -> Iterator[tuple[str, Part | bool]]:
    """All schemas inside a schema with where they are, itself first; no values that merely look like one."""
    if isinstance(schema, dict | bool):
        yield place, schema
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        at = f"{place}/{key}"
        if key in _MAPS and isinstance(value, dict):
            for name, part in value.items():
                yield from _parts(f"{at}/{name.replace('~', '~0').replace('/', '~1')}", part)
        elif key in _LISTS and isinstance(value, list):
            for index, part in enumerate(value):
                yield from _parts(f"{at}/{index}", part)
        elif key in _SCHEMAS:
            yield from _parts(at, value)


def _refuse(part: Part, *, nested: bool) -> None:
    for key in _IGNORED & part.keys():
        if part[key] not in _NOTHING.get(key, ()):
            raise SchemaError(f"must not use {key}, which cannot be enforced")
    types = part.get("type", "string")
    if part.get("format") == "unknown" and "string" in (types if isinstance(types, list) else [types]):  # the compiler's own name for any
        raise SchemaError("must not use the format unknown, which cannot be enforced")
    if nested and ("$id" in part or "$schema" in part):
        raise SchemaError("must not use $id and $schema below the top")
    if "prefixItems" in part and isinstance(part.get("items"), list):  # each is what the other was called in another draft
        raise SchemaError("must not use prefixItems beside an array in items")
    least, required = part.get("minProperties", 0), part.get("required", [])
    named = len(set(map(str, required))) if isinstance(required, list) else 0
    # A name may come twice in what the compiler admits, and counts twice there.
    if isinstance(least, int | float) and least > max(1, named):
        raise SchemaError("must not use minProperties above 1 and above the number of required ones, which cannot be enforced")
    for key in ("const", "enum", "required", "properties"):
        value = part.get(key)
        if key == "properties" and isinstance(value, dict):
            value = list(value)  # their names alone
        if any(_unwritable(text, value=key in ("const", "enum")) for text in _scalars(value) if isinstance(text, str)):
            raise SchemaError(f"must not have control characters in {key} other than \\b \\f \\n \\r \\t")
    for key, number in _inexact(part):
        raise SchemaError(f"must not have the number {number} in {key}, which cannot be enforced exactly")
    if _is_number(step := part.get("multipleOf")) and step <= 0:
        # JSON Schema Validation 2020-12, 6.2.1: "The value of "multipleOf" MUST be a number, strictly greater than 0."
        raise SchemaError(f"must not have {step} in multipleOf, which is a number above 0")


def _inexact(part: Part) -> Iterator[tuple[str, float]]:
    """Numbers of which the compiler would make others, with their keywords."""
    for key in ("const", "enum"):
        for number in filter(_is_number, _scalars(part.get(key))):
            if not _kept(number, whole=isinstance(number, int)) and number != _INT64:
                yield key, number
    types = part.get("type", "number")
    whole = "number" not in (types if isinstance(types, list) else [types])
    for key, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        bound, next_to = part.get(key), part.get(exclusive)
        if _is_number(bound) and not _kept(bound, whole=whole) and not (whole and key == "maximum" and bound == _INT64):
            yield key, bound
        beyond = bound if next_to is True else next_to  # as draft 4 has it
        if _is_number(beyond) and not abs(beyond) < _WHOLE:  # the compiler adds or takes 1
            yield exclusive, beyond


def _kept(number: float, *, whole: bool) -> bool:
    """The compiler reads a double, and writes that integer if only integers are meant, else the shortest decimal number of that double."""
    if abs(number) <= _WHOLE:
        return True
    return abs(number) < _INT64 and float(number) == number and (whole or Decimal(repr(float(number))) == number)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unwritable(text: str, *, value: bool) -> bool:
    """Holds a character that the compiler writes as a code only, and leaves out where codes are not allowed: in values U+007F is one."""
    return any((char < " " and char not in "\b\f\n\r\t") or (value and char == "\x7f") for char in text)


def _scalars(value: object) -> Iterator[object]:
    """All that a value is made of, names with them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _scalars(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _scalars(inner)
    else:
        yield value


def _rewritten(schema: object, never: Set[str]) -> object:
    """Regular expressions in the compiler's dialect, formats as regular expressions, bounds that hold for doubles.

    Args:
        never: places that no value fits, or none that ends.
    """
    if not isinstance(schema, dict):
        return schema
    if (to := target(schema)) is not None and to in never:
        return False
    part: Part = {}
    for key, value in _keywords(schema):
        if value in _NOTHING.get(key, ()):
            continue
        if key in _MAPS and isinstance(value, dict):
            named = _pattern if key == "patternProperties" else str
            part[key] = {named(name): _rewritten(inner, never) for name, inner in value.items()}
        elif key in _LISTS and isinstance(value, list):
            part[key] = [_rewritten(inner, never) for inner in value]
        elif key in _SCHEMAS:
            part[key] = _rewritten(value, never)
        else:
            part[key] = value
    also = list(_neighbours(part))
    if isinstance(pattern := part.get("pattern"), str):
        part["pattern"], *ahead = (_pattern(each) for each in without_lookahead(pattern))
        also += [{"pattern": each} for each in ahead]
    form = part.get("format")
    if isinstance(form, str) and form in _FORMATS:
        del part["format"]
        also += _FORMATS[form]
    elif isinstance(form, str) and form in _INTEGER_FORMATS:  # the compiler still refuses the format of a string
        also.append(_INTEGER_FORMATS[form])
    if also:
        others = part.get("allOf", [])
        part["allOf"] = [*others, *also] if isinstance(others, list) else others
    return part


def _keywords(part: Part) -> Iterator[tuple[str, object]]:
    """Those that say something, in their order, which is that of an object's members; but partners together."""
    for key in dict.fromkeys(key for each in part for key in (each, _PARTNERS.get(each, each)) if key in part):
        if key in ("$id", "$schema"):
            continue  # nothing refers to the one, and for the other's sake the compiler would pass over what that draft did not have yet
        if key == "additionalItems" and not isinstance(part.get("items"), list):
            # JSON Schema Validation draft-07, 6.4.2: "Otherwise, "additionalItems" MUST be ignored". The compiler would ignore prefixItems.
            continue
        yield key, part[key]


def _neighbours(part: Part) -> Iterator[Part]:
    """The next double as a bound beside one of many digits: one digit more is below it, but whoever reads that as a double reads the bound.

    Bounds of few digits have none, as only a number of sixteen comes so near to them; and the compiler admits no number that a bound begins
    with (with 4.75: no 4.7, but 4.70), so that with their neighbours they would cost 4.9 instead of 5.

    A whole one whose neighbour is farther from 0 has it all the same: between 1, excluded, and 1.5 the compiler admits 1, and nothing but 1
    is what that neighbour begins with. It is the next of ``_DIGITS`` digits: of more, the compiler may read the bound itself.
    """
    for exclusive, inclusive, away in (("exclusiveMaximum", "maximum", -1), ("exclusiveMinimum", "minimum", 1)):
        bound = part.get(inclusive if part.get(exclusive) is True else exclusive)  # draft 4 has true
        if not _is_number(bound):
            continue
        places = _DIGITS - len(str(abs(int(bound))))
        if bound * away >= 0 and float(bound).is_integer() and places > 0:
            yield {inclusive: round(bound + away * 10.0**-places, places)}
        elif len(_significant(float(bound))) >= _DIGITS:
            yield {inclusive: math.nextafter(bound, away * math.inf)}


def _significant(value: float) -> str:
    """Its digits, of the shortest number that is the same double."""
    return "".join(filter(str.isdigit, repr(value).partition("e")[0])).lstrip("0")


def _pattern(text: str) -> str:
    try:
        return from_ecma(text)
    except PatternError as error:
        raise SchemaError(f"must not use {error} in a pattern, which ECMA 262 does not have or which cannot be enforced") from None
