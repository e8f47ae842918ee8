"""Request bytes to a JSON object, refusing everything that two JSON readers could understand differently.

The standard decoder is used, and not the faster ``msgspec``, because only it shows duplicate keys and lets the error name the field
that held the NaN, the overflowing number or the lone surrogate.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from quintet.errors import BadRequest, printable, shorten

MAX_DEPTH = 64
"""Deepest nesting of arrays and objects; no documented field needs more than a few levels."""

MAX_PARTS = 32_768
"""Most values in a body other than texts and whole numbers, and members: what is costly to read, and is read before any field can be
checked. A guide may be 256 KiB of JSON Schema, and has fewer."""

MAX_VALUES = 2**19
"""Most values in arrays and members together; more token ids than 128 prompts of 4096 tokens have."""

MAX_TEXTS = 2 * MAX_PARTS
"""Most texts, names among them. No field takes as many, and to step over them is what a body of 2 MiB costs most for."""

MAX_DIGITS = 100
"""Most digits of a number in a body that is large: to read those of an integer takes as long as the square of their number, and nothing
else runs meanwhile. No field needs more than 20."""

LONG_BYTES = 1 << 16
"""A body is large in that sense from here on."""

_DIGITS = b"0" * (MAX_DIGITS + 1)
_AS_DIGITS = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))

_INVALID = "invalid_json"
_MOST_STEPS = 6  # of a path in a message

_Path = tuple[()] | tuple["_Path", str | int]
"""Where a value stands: its container's path, and its key or index there."""


def decode_object(body: bytes) -> dict[str, object]:
    """Decode a request body.

    Raises:
        BadRequest: not UTF-8, not JSON, not an object, a duplicate key, a number that is not finite, an integer of over 4300
            digits, in a large body a number of over ``MAX_DIGITS``, a string with half a surrogate pair, nesting deeper than
            ``MAX_DEPTH``, or more than ``MAX_PARTS``, ``MAX_TEXTS`` or ``MAX_VALUES``.
    """
    text = _text(body)
    if _has_many_texts(text) or _surplus(text):
        _require_few(text)
    if _has_long_number(body, text):
        raise BadRequest(
            "", f"The body has over {LONG_BYTES} bytes and must have no number of more than {MAX_DIGITS} digits", code=_INVALID
        )
    value = _parse(text)
    if not isinstance(value, dict):
        raise BadRequest("", "The body must be a JSON object", shorten(value), code=_INVALID)
    _check(value, (), 1)
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


def _surplus(text: str) -> str:
    """What JSON has more of than may be, empty = nothing; where it has strings, what is in them is counted along."""
    if sum(map(text.count, "[{:.eE")) > MAX_PARTS:
        return f"{MAX_PARTS} members, arrays, objects and fractions"
    return f"{MAX_VALUES} values" if text.count(",") > MAX_VALUES else ""


def _has_many_texts(text: str) -> bool:
    """Whether there are more strings than may be; escaped quotes are counted along."""
    return text.count('"') > 2 * MAX_TEXTS


def _require_few(text: str) -> None:
    """Count what seemed too many again, without what is in strings.

    Raises:
        BadRequest: it is too many.
    """
    text = _without_escapes(text)
    if _has_many_texts(text):
        raise too_many(f"{MAX_TEXTS} texts")
    if surplus := _surplus("".join(_outside_strings(text))):
        raise too_many(surplus)


def _outside_strings(text: str) -> list[str]:
    """The parts of JSON ``_without_escapes`` that are in no string: every second one between its quotes. What is no JSON may be cut
    otherwise, from its first fault on, beyond which no reader comes."""
    return text.split('"')[::2]


def _without_escapes(text: str) -> str:
    return text.replace("\\\\", "").replace('\\"', "") if "\\" in text else text


def _has_long_number(body: bytes, text: str) -> bool:
    """Whether a large body has a number of too many digits; a string may have as many as it likes."""
    if len(body) <= LONG_BYTES or _DIGITS not in body.translate(_AS_DIGITS):
        return False
    parts = _outside_strings(_without_escapes(text))
    return any(_DIGITS in part.encode().translate(_AS_DIGITS) for part in parts if len(part) > MAX_DIGITS)


def too_many(what: str) -> BadRequest:
    """The error for a body of more values than may be.

    Args:
        what: how many of which there may be.
    """
    return BadRequest("", f"The body holds more than {what}", code="too_many_values")


def _parse(text: str) -> object:
    try:
        value: object = json.loads(text, object_pairs_hook=_unique, parse_constant=float)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise BadRequest("", f"The body is not valid JSON: {error.msg} ({where})", code=_INVALID) from None
    except RecursionError:
        raise BadRequest("", f"The body is nested deeper than {MAX_DEPTH} levels", code=_INVALID) from None
    except ValueError:  # the only other one: the limit on the digits of an int, a guard against quadratic work
        raise BadRequest("", "The body holds an integer of more than 4300 digits", code=_INVALID) from None
    return value


class _Repeated(dict[str, Any]):
    """An object that has a key more than once; where it stands is known when all is decoded."""

    name: str


_CONTAINERS = frozenset({dict, list, _Repeated})


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Readers disagree on which of two equal keys counts, so neither does."""
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    repeated = _Repeated(members)
    repeated.name = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
    return repeated


def _check(container: dict[str, Any] | list[Any], path: _Path, depth: int) -> None:
    """Walk what the decoder made. A body may hold a million items: they are checked in C, and one by one only to name the offender."""
    if type(container) is _Repeated:
        raise BadRequest(_spell((path, container.name)), "is given more than once", code="duplicate_key")
    if depth > MAX_DEPTH:
        raise BadRequest(_spell(path), f"is nested deeper than {MAX_DEPTH} levels", code=_INVALID)
    values = container.values() if isinstance(container, dict) else container
    kinds = set(map(type, values))
    if isinstance(container, dict) and not _is_unicode(container):
        for name in container:
            _require_unicode(name, (path, name))
    if str in kinds and not _is_unicode([item for item in values if type(item) is str]):
        for key, item in _items(container):
            if type(item) is str:
                _require_unicode(item, (path, key))
    if float in kinds and not all(map(math.isfinite, [item for item in values if type(item) is float])):
        key, item = next((key, item) for key, item in _items(container) if type(item) is float and not math.isfinite(item))
        raise BadRequest(_spell((path, key)), "must be a finite number", _spelled(item), code=_INVALID)
    if not kinds.isdisjoint(_CONTAINERS):
        for key, item in _items(container):
            if type(item) in _CONTAINERS:
                _check(item, (path, key), depth + 1)


def _items(container: dict[str, Any] | list[Any]) -> Iterable[tuple[str | int, Any]]:
    return container.items() if isinstance(container, dict) else enumerate(container)


def _is_unicode(texts: Iterable[str]) -> bool:
    """None of them has half a surrogate pair; two halves stay halves where texts are joined."""
    whole = "".join(texts)
    try:
        return whole.isascii() or bool(whole.encode("utf-8"))
    except UnicodeEncodeError:
        return False


def _require_unicode(text: str, path: _Path) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        rule = f"must be valid Unicode; the character at offset {error.start} is half of a surrogate pair"
        raise BadRequest(_spell(path), rule, shorten(text[error.start]), code=_INVALID) from None


def _spell(path: _Path) -> str:
    """``a.b[1]``, or its first ``_MOST_STEPS`` steps."""
    steps: list[str | int] = []
    while path:
        path, step = path
        steps.append(step)
    text = ""
    for step in steps[: -_MOST_STEPS - 1 : -1]:  # the innermost comes first in ``steps``
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{printable(step)}" if text else printable(step)
    return text


def _spelled(value: float) -> str:
    """As JavaScript spells it, which is how it gets into a body (an overflowing literal such as 1e999 reads as Infinity)."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
