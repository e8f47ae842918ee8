"""JSON in ASCII: the same bytes as where each character is escaped by itself."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quintet.dialects.wire import encode

TEXTS = st.text() | st.text(st.sampled_from('a"\\\0\x1f\x7f\x80\x85\u00e9\u2028\u2029\ud7ff\ue000\ufeff\uffff\U0001f389\U0010ffff'))
VALUES = st.recursive(TEXTS | st.none() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False), st.lists)


def one_by_one(value: Any) -> bytes:
    """What msgspec writes, with each character outside of ASCII escaped where it stands."""
    text = msgspec.json.encode(value).decode()
    return "".join(one if one.isascii() else json.dumps(one)[1:-1] for one in text).encode()


@given(VALUES | st.dictionaries(TEXTS, VALUES))
@example("\U0001f389\u00e9a\u2028\u2029\x85\0\x1f\x7f")
def test_json_is_in_ascii_and_says_what_was_meant(value: Any) -> None:
    assert encode(value) == one_by_one(value)
    assert json.loads(encode(value)) == value


@pytest.mark.parametrize("text", ["\ud83c", "a\udf89", "\udf89\ud83c"])
def test_half_a_pair_is_no_text(text: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        encode([text])
