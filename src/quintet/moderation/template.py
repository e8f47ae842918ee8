"""A moderation model's format as its owner writes it down, in TOML. Plain code over values.

The file may be anybody's: its size, keys, types and lengths are checked before anything is made of it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from quintet.errors import ModelError, shorten
from quintet.moderation.format import OUTPUT, PROMPT, Format, Layout, Question

MAX_BYTES = 64 * 1024
MAX_TEXTS = 64
"""Most control tokens, and most categories."""
MAX_TEXT = 256
"""Most characters of a text that is not a layout."""
MAX_TOKENS = 128
"""Most tokens of an answer."""


def read(data: bytes, name: str) -> Format:
    """The format in a file's bytes.

    Args:
        name: of the file, for errors; it names the format too.

    Raises:
        ModelError: not TOML, an unknown key, or a value that breaks its rule.
    """
    if len(data) > MAX_BYTES:
        raise ModelError(f"{name} has {len(data)} bytes; a moderation format has at most {MAX_BYTES}.")
    try:
        given = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise ModelError(f"{name} must be UTF-8; the byte at offset {error.start} is not.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ModelError(f"{name} is not TOML: {shorten(str(error), 200)}.") from None
    for key in given:
        if key not in _RULES:
            raise ModelError(f"{name}: unknown key {shorten(key)}; the keys are {', '.join(_RULES)}.")
    for key, rule in _RULES.items():
        if key not in given and rule.default is None:
            raise ModelError(f"{name}: {key} is missing; it must be {rule.words}.")
        if key in given and not rule.holds(given[key]):
            raise ModelError(f"{name}: {key} must be {rule.words}, got {shorten(given[key])}.")
    return _format({key: rule.default for key, rule in _RULES.items()} | given, name)


def _format(values: Mapping[str, Any], name: str) -> Format:
    safe, unsafe = values["safe"].strip().lower(), values["unsafe"].strip().lower()
    if safe[0] == unsafe[0]:
        raise ModelError(f"{name}: safe and unsafe must begin with different letters, got {shorten(safe)} and {shorten(unsafe)}.")
    after = values["after"].strip()
    return Format(
        name=name,
        source="its owner",
        questions=(Question(Layout(values["prompt"], after), Layout(values["output"], after)),),
        safe=safe,
        unsafe=unsafe,
        control=tuple(values["control"]),
        threshold=float(values["threshold"]),
        categories=tuple(values["categories"].items()),
        most=values["max-tokens"],
    )


def _text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value.strip()) <= len(value) <= MAX_TEXT


def _number(value: object, low: float, high: float, kind: type) -> bool:
    return isinstance(value, kind | int) and not isinstance(value, bool) and low <= value <= high  # type: ignore[operator]


def _is_layout(value: object, *places: str) -> bool:
    return isinstance(value, str) and all(value.count(place) == 1 for place in places)


class _Rule(NamedTuple):
    """What holds for the value of a key.

    Args:
        words: what it must be.
        default: where the key is not there; ``None`` = it must be there.
    """

    words: str
    holds: Callable[[object], bool]
    default: Any


_RULES: Mapping[str, _Rule] = {
    "prompt": _Rule(f"a text with {PROMPT} in it once, and no {OUTPUT}", lambda v: _is_layout(v, PROMPT) and OUTPUT not in str(v), None),
    "output": _Rule(f"a text with {PROMPT} and {OUTPUT} in it once each", lambda v: _is_layout(v, PROMPT, OUTPUT), None),
    "safe": _Rule(f"a text of 1 to {MAX_TEXT} characters", _text, None),
    "unsafe": _Rule(f"a text of 1 to {MAX_TEXT} characters", _text, None),
    "after": _Rule(f"a text of at most {MAX_TEXT} characters", lambda v: v == "" or _text(v), ""),
    "control": _Rule(
        f"a list of at most {MAX_TEXTS} texts of 1 to {MAX_TEXT} characters",
        lambda v: isinstance(v, list) and len(v) <= MAX_TEXTS and all(map(_text, v)),
        [],
    ),
    "threshold": _Rule("a number above 0, up to 1", lambda v: _number(v, 1e-9, 1, float), 0.5),
    "categories": _Rule(
        f"a table of at most {MAX_TEXTS} codes, letters and digits, and their names",
        lambda v: isinstance(v, dict) and len(v) <= MAX_TEXTS and all(code.isalnum() and _text(name) for code, name in v.items()),
        {},
    ),
    "max-tokens": _Rule(f"an integer from 1 to {MAX_TOKENS}", lambda v: _number(v, 1, MAX_TOKENS, int), 32),
}
"""By key."""
