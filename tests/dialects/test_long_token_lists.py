"""Answers of ``/tokenize`` to texts of a million tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from quintet.dialects import columns, tokens
from quintet.dialects.wire import encode


def items(value: object) -> int:
    """Of a list that is not written yet, and not in another one."""
    whole = isinstance(value, Sequence) and not isinstance(value, str | bytes) and not isinstance(value[0], msgspec.Raw)
    return len(value) if whole and isinstance(value, Sequence) else 0


@pytest.mark.parametrize("body", [{"prompt": "a", "return_token_strs": True}, {"content": "a"}, {"content": "a", "with_pieces": True}])
def test_a_piece_at_a_time_is_encoded(monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]) -> None:
    """All in one go held everybody up for forty milliseconds: an encoder does not let others have the interpreter."""
    longest = 0

    def noted(value: Any) -> bytes:
        nonlocal longest
        longest = max(longest, *map(items, value.values() if isinstance(value, dict) else (value,)), 0)
        return encode(value)

    monkeypatch.setattr(columns, "encode", noted)
    monkeypatch.setattr(tokens, "encode", noted)
    ids = [0] * 100_000
    asked = tokens.parse_tokenize(json.dumps(body).encode())
    answer = json.loads(tokens.tokenized(asked, ids, [b"a"], lambda _: "b", 9))
    listed = {"token_strs": ["b"] * len(ids)} if "prompt" in body else {}
    of_pieces = [{"id": 0, "piece": "a"}] * len(ids)
    shape = {"count": len(ids), "max_model_len": 9} if "prompt" in body else {}
    assert answer == {**shape, "tokens": of_pieces if "with_pieces" in body else ids, **listed}
    assert longest == 1 << 14


def test_no_tokens_are_an_empty_list() -> None:
    assert tokens.tokenized(tokens.parse_tokenize(b'{"content": ""}'), [], [], lambda _: "", 9) == b'{"tokens":[]}'
