"""Request bytes to a JSON object, refusing everything that two JSON readers could understand differently.

The standard decoder is used, and not the faster ``msgspec``, because only it shows duplicate keys and lets the error name the field
that held the NaN, the overflowing number or the lone surrogate.
"""

from __future__ import annotations

import json
import math
from typing import Any

from quintet.errors import BadRequest, shorten

MAX_DEPTH = 64
"""Deepest nesting of arrays and objects; no documented field needs more than a few levels."""

_INVALID = "invalid_json"


def decode_object(body: bytes) -> dict[str, object]:
    """Decode a request body.

    Raises:
        BadRequest: not UTF-8, not JSON, not an object, a duplicate key, a number that is not finite, an integer of over 4300
            digits, a string with half a surrogate pair, or nesting deeper than ``MAX_DEPTH``.
    """
    value = _parse(_text(body))
    if not isinstance(value, dict):
        raise BadRequest("", "The body must be a JSON object", shorten(value), code=_INVALID)
    _check(value, "", 1)
    return value


def _text(body: bytes) -> str:
    """RFC 8259, 8.1: JSON between systems is UTF-8, without a byte order mark."""
    if not body:
        raise BadRequest("", "The body is empty; it must be a JSON object", code=_INVALID)
    if body.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise BadRequest("", "The body must be UTF-8 without a byte order mark", code=_INVALID)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest("", f"The body must be UTF-8; the byte at offset {error.start} is not", code=_INVALID) from None


def _parse(text: str) -> object:
    try:
        value: object = json.loads(text, object_pairs_hook=_unique, parse_constant=float)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise BadRequest("", f"The body is not valid JSON: {error.msg} ({where})", code=_INVALID) from None
    except RecursionError:
        raise _too_deep("") from None
    except ValueError:  # the only other one: the limit on the digits of an int, a guard against quadratic work
        raise BadRequest("", "The body holds an integer of more than 4300 digits", code=_INVALID) from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Readers disagree on which of two equal keys counts, so neither does."""
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        name = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadRequest(printable(name), "is given more than once", code="duplicate_key")
    return made


def _check(value: object, path: str, depth: int) -> None:
    """Walk the containers; scalars in them are checked in place because long arrays of token ids come through here."""
    if depth > MAX_DEPTH:
        raise _too_deep(path)
    if isinstance(value, dict):
        for key, item in value.items():
            name = printable(key)
            _scalar(key, name)
            _item(item, f"{path}.{name}" if path else name, depth)
    elif isinstance(value, list) and not set(map(type, value)) <= {int}:
        for index, item in enumerate(value):
            _item(item, f"{path}[{index}]", depth)


def _item(item: object, path: str, depth: int) -> None:
    if isinstance(item, dict | list):
        _check(item, path, depth + 1)
    else:
        _scalar(item, path)


def _scalar(value: object, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(path, "must be a finite number", _spelled(value), code=_INVALID)
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            rule = f"must be valid Unicode; the character at offset {error.start} is half of a surrogate pair"
            raise BadRequest(path, rule, shorten(value[error.start]), code=_INVALID) from None


def _spelled(value: float) -> str:
    """As JavaScript spells it, which is how it gets into a body (an overflowing literal such as 1e999 reads as Infinity)."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _too_deep(path: str) -> BadRequest:
    return BadRequest(path[:60], f"{'is' if path else 'The body is'} nested deeper than {MAX_DEPTH} levels", code=_INVALID)


def printable(name: str, limit: int = 60) -> str:
    """A client's key in at most ``limit`` printable ASCII characters, safe in a message and a header."""
    return name if len(name) <= limit and name.isascii() and name.isprintable() else shorten(name, limit)[1:-1]
