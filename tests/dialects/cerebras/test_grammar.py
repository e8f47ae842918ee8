"""Cerebras' grammar roots: what they accept, as the engine follows their guides over single bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from quintet.dialects.cerebras.grammar import ROOTS, guide
from quintet.guides.matcher import Compiler, Matcher
from quintet.guides.translate import BLANKS, translate, verify

DOCS = Path(__file__).parents[3] / "docs" / "dialects" / "cerebras.md"
END = 256
BYTES = Compiler([*(bytes([byte]) for byte in range(256)), b""], frozenset({END}), 257)

CALL = '{"name": "f", "arguments": {"a": [1]}}'
TEXTS = [
    *("", " ", "\n\t\r ", " " * 20, " " * 21, " hello { [", "\nx", "Yes.\nNo.", " {}", "\n[", "{", "[1", "nul"),
    *('"a"', '""', '"\\n"', '"\u20ac"', "1.5e3", "-0", "7", "01", "true", "false", "null"),
    *("{}", '{"a": [null]}', "[]", "[1, [true]]"),
    *('{"name": "f"}', '{"name": 1, "arguments": {}}', '{"name": "f", "arguments": []}', '{"name": "f", "arguments": {}, "b": 1}'),
    *(CALL, f"[{CALL}]", f"[{CALL}, {CALL}]", f"[{CALL}, 1]"),
]


def accepts(root: str, text: str) -> bool:
    made = guide(root, "grammar_root")
    grammar = translate(made.kind, made.text)
    verify(made.kind, grammar)
    matcher = BYTES.compile(grammar)
    assert not matcher.error
    return all(allows(matcher, token) and matcher.consume(token) for token in text.encode()) and allows(matcher, END)


def allows(matcher: Matcher, token: int) -> bool:
    mask = np.zeros(9, np.uint32)
    return matcher.fill(mask) and bool(mask[token // 32] >> (token % 32) & 1)


def expected(root: str, text: str) -> bool:
    """What the docs say, with Python's own JSON reader."""
    value = parsed(text)
    match root:
        case "root":
            return expected("fcall", text) or expected("nofcall", text)
        case "fcall":
            return expected("func", text) or expected("funcarray", text)
        case "nofcall":
            return not text.lstrip().startswith(("{", "["))
        case "insidevalue":
            return value is not ... and not isinstance(value, dict | list)
        case "value":
            return value is not ...
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "func":
            return is_call(value)
        case "funcarray":
            return isinstance(value, list) and bool(value) and all(map(is_call, value))
        case "ws":
            return 1 <= len(text) <= 20 and not text.strip(" \t\n\r")
    return isinstance(value, {"object": dict, "array": list, "string": str}[root])


def parsed(text: str) -> object:
    """The JSON value, or an ellipsis if it is none or has white space around it."""
    try:
        return json.loads(text) if text == text.strip() else ...
    except ValueError:
        return ...


def is_call(value: object) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"name", "arguments"}
        and isinstance(value["name"], str)
        and isinstance(value["arguments"], dict)
    )


@pytest.mark.parametrize("root", ROOTS)
def test_a_root_accepts_what_it_stands_for_and_nothing_else(root: str) -> None:
    verdicts = {text: accepts(root, text) for text in TEXTS}
    assert verdicts == {text: expected(root, text) for text in TEXTS}
    assert set(verdicts.values()) == {True, False}


@pytest.mark.fault("B08")
@pytest.mark.parametrize("root", ["root", "fcall", "func", "funcarray", "value", "object", "array"])
def test_white_space_in_json_is_bounded_in_every_root(root: str) -> None:
    start = "[" if root in ("array", "funcarray") else "{"
    made = guide(root, "grammar_root")
    for blanks, wanted in ((BLANKS, True), (BLANKS + 1, False)):
        matcher = BYTES.compile(translate(made.kind, made.text))
        assert all(allows(matcher, token) and matcher.consume(token) for token in (start + " " * blanks).encode()) is wanted


def test_the_docs_say_what_each_root_accepts() -> None:
    found = re.search(r"<!-- roots -->\n(.*)<!-- /roots -->", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    rows = [f"| `{name}` | {root.accepts} |" for name, root in ROOTS.items()]
    assert found is not None
    assert found[1].strip().splitlines() == ["| root | accepts |", "|---|---|", *rows]
