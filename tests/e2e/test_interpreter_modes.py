"""However Python is started, a server gives the same bytes; and nothing rests on an ``assert``, which ``-O`` takes away."""

from __future__ import annotations

import ast
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_serve_command import Served, served

SOURCES = sorted((Path(__file__).parents[2] / "src").rglob("*.py"))

MODES: dict[str, dict[str, str]] = {
    "-O": {"PYTHONOPTIMIZE": "2", "PYTHONHASHSEED": "random"},
    "-X dev -W error": {"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "error", "PYTHONHASHSEED": "1"},
    "C locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONHASHSEED": "2"},
    "Turkish locale": {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8", "PYTHONHASHSEED": "3"},
}

NAMES = '{"type": "object", "properties": {"i": {"type": "string", "maxLength": 9}, "I": {"type": "number"}}, "required": ["i"]}'
ASKED: list[dict[str, Any]] = [
    {"prompt": "The sky \u0130\u0131 is", "max_tokens": 12, "temperature": 1.0, "logprobs": 3, "echo": True},
    {"prompt": ["a", "b"], "max_tokens": 9, "n": 2, "temperature": 0.7, "logit_bias": {"101": 2.5}, "stop": "e"},
    {"prompt": "JSON:", "max_tokens": 40, "response_format": {"type": "json_schema", "schema": json.loads(NAMES)}},
    {"prompt": "x", "max_tokens": 2, "temperature": 9.5},
    {"prompt": "x", "logit_bias": {"\u0661": 1}},
    {"prompt": ["x", [1]]},
    {"prompt": "x", "model": "\u0130"},
]
"""What is answered, and what is refused."""


def answers(one: Served) -> list[tuple[int, object]]:
    """Status, and choices or error, of each request."""
    found: list[tuple[int, object]] = []
    for asked in ASKED:
        status, body = one.post({"seed": 7, **asked}, **{"X-Completions-Dialect": "fireworks"})
        told = json.loads(body)
        found.append((status, told.get("choices", told.get("error"))))
    return found


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, object]]:
    with served("--toy", "--log-level", "warning", PYTHONHASHSEED="0") as one:
        found = answers(one)
    assert [status for status, _ in found] == [200] * 3 + [400] * 3 + [404]
    return found


@pytest.mark.fault("D17")
@pytest.mark.parametrize("mode", MODES)
def test_no_mode_of_python_changes_a_byte_and_none_has_anything_to_warn_of(mode: str, expected: list[tuple[int, object]]) -> None:
    with served("--toy", "--log-level", "warning", **MODES[mode]) as one:
        assert answers(one) == expected
        code, err = one.end(signal.SIGTERM)
    # In its debug mode asyncio tells of each callback that took 0.1 s, as any does on a machine that is busy enough.
    assert (code, [line for line in err.splitlines() if not ('"logger":"asyncio"' in line and " took " in line)]) == (0, [])


@pytest.mark.fault("D17")
def test_an_assert_only_tells_the_type_checker_what_a_value_is() -> None:
    """What a client sends is checked by an ``if`` that stays: ``-O`` removes every assert."""
    found = [(path, node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]
    assert found
    for path, node in found:
        said = ast.unparse(node.test)
        assert said.startswith("isinstance(") or said.endswith(" is not None"), f"{path}:{node.lineno}: assert {said}"
