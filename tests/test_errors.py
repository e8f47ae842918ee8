"""What an error shows of a value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quintet.errors import shorten

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text("aé\n😀", max_size=200)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=90) | st.dictionaries(st.text("bü", max_size=90), inner, max_size=90))


@given(values, st.integers(10, 200))
def test_a_large_value_is_cut_to_the_beginning_of_its_repr(value: object, limit: int) -> None:
    whole = ascii(value)
    assert shorten(value, limit) == (whole if len(whole) <= limit else f"{whole[: limit - 3]}...")
