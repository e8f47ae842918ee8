"""What an error shows of a value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quintet.errors import counted, printable, shorten

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text("aé\n😀", max_size=200)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=90) | st.dictionaries(st.text("bü", max_size=90), inner, max_size=90))


@given(values, st.integers(10, 200))
def test_a_large_value_is_cut_to_the_beginning_of_its_repr_with_the_words_of_json(value: object, limit: int) -> None:
    whole = ascii(value).replace("None", "null").replace("True", "true").replace("False", "false")  # none of them is in the texts above
    assert shorten(value, limit) == (whole if len(whole) <= limit else f"{whole[: limit - 3]}...")


def test_a_value_nested_as_deeply_as_a_decoder_takes_is_shown_as_far_as_it_is_shown() -> None:
    value: object = 0
    for level in range(100_000):
        value = [value] if level % 2 else {"a": value}
    assert shorten(value) == ("[{'a': " * 20)[:57] + "..."


@given(st.text("ab'é\n😀", max_size=200), st.integers(10, 200))
def test_a_long_name_is_cut_as_a_value_is_but_for_the_quotes(name: str, limit: int) -> None:
    whole = name if name.isascii() and name.isprintable() else ascii(name)[1:-1]
    assert printable(name, limit) == (whole if len(whole) <= limit else f"{whole[: limit - 3]}...")


def test_one_is_told_in_the_singular() -> None:
    assert [counted(many, "token") for many in (0, 1, 2)] == ["0 tokens", "1 token", "2 tokens"]
    assert [counted(many, "CPU") for many in (1.0, 1.5, 2 / 3)] == ["1 CPU", "1.5 CPUs", "0.666667 CPUs"]
