"""Arrays of values of a kind."""

from __future__ import annotations

import pytest

from quintet.dialects.fields import Integer
from quintet.dialects.lists import ListOf
from quintet.errors import BadRequest

PAIRS = ListOf(Integer(0, 9), most=3, least=2)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1], "'x' must have at least 2 items, got 1 item"),
        ([1] * 4, "'x' must have at most 3 items, got 4 items"),
        ([1, 10], r"'x\[1\]' must be"),
        ("12", "'x' must be an array"),
    ],
)
def test_what_a_list_lacks_or_has_too_much_of_is_said(value: object, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        PAIRS.read("x", value)


def test_as_many_as_may_be_are_taken() -> None:
    assert [PAIRS.read("x", [1] * count) for count in (2, 3)] == [(1, 1), (1, 1, 1)]
