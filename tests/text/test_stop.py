"""Stop strings, case by case."""

from __future__ import annotations

from typing import SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.text.stop import Pattern, StopMatcher, compile_stops


def feed_all(stops: list[str], pieces: list[str], include: bool = False) -> list[tuple[str, str | None]]:
    matcher = StopMatcher(compile_stops(stops), include)
    return [matcher.feed(piece) for piece in pieces]


@pytest.mark.fault("A18")
def test_a_stop_over_three_tokens_never_leaks_a_fragment() -> None:
    assert feed_all(["</s>"], ["a<", "/", "s>b"]) == [("a", None), ("", None), ("", "</s>")]


def test_an_included_stop_arrives_whole() -> None:
    assert feed_all(["</s>"], ["a<", "/", "s>b"], include=True) == [("a", None), ("", None), ("</s>", "</s>")]


def test_a_false_beginning_is_released_as_soon_as_it_fails() -> None:
    assert feed_all(["aab"], ["aa", "a", "c"]) == [("", None), ("a", None), ("aac", None)]


def test_the_stop_that_completes_first_wins_over_one_that_started_first() -> None:
    assert feed_all(["abcd", "bc"], ["abcd"]) == [("a", "bc")]


def test_of_two_that_complete_together_the_longer_wins() -> None:
    assert feed_all(["bc", "abc"], ["x", "abc"]) == [("x", None), ("", "abc")]


def test_stops_are_literal() -> None:
    assert feed_all(["a+b"], ["aab", "a+b"]) == [("aab", None), ("", "a+b")]


def test_flush_gives_back_what_was_held() -> None:
    matcher = StopMatcher(compile_stops(["\n\nQ:", "\n\nA:"]), False)
    assert matcher.feed("text\n\n") == ("text", None)
    assert matcher.flush() == "\n\n"
    assert matcher.flush() == ""


def test_without_stops_everything_passes() -> None:
    assert feed_all([], ["a", ""]) == [("a", None), ("", None)]


def test_the_whole_output_can_be_the_stop() -> None:
    assert feed_all(["ab"], ["a", "b"]) == [("", None), ("", "ab")]


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        Pattern("")


def test_equal_stops_are_searched_once() -> None:
    assert len(compile_stops(["a", "b", "a"])) == 2


class Counted(str):
    """Text that counts how often one of its characters is looked at."""

    looks = 0

    def __getitem__(self, at: SupportsIndex | slice) -> str:
        self.looks += 1
        return super().__getitem__(at)


@pytest.mark.parametrize("stop", ["a" * 999 + "b", "aab" * 333, "ab" * 400 + "b", "a" * 500 + "b" + "a" * 500])
@pytest.mark.parametrize("text", ["a" * 5000, "aab" * 1600, "ab" * 2500, ("a" * 998 + "c") * 5])
def test_hostile_stops_cost_linear_work(stop: str, text: str) -> None:
    """Each character of the stop is looked at a few times for one of the text, however they are made."""
    stops = compile_stops([stop])
    stops.all[0].text = want = Counted(stop)
    StopMatcher(stops, False).feed(text, armed=False)
    assert want.looks <= 8 * (len(text) + len(stop))


def test_what_almost_matches_in_many_choices_is_looked_for_once() -> None:
    """32 strings of a thousand spaces and more, 256 choices of tokens of 64: each step held the event loop up for a tenth of a second."""
    stops = compile_stops([" " * 1000 + chr(97 + at) for at in range(26)])
    for pattern in stops.all:
        pattern.text = Counted(pattern.text)
    matchers = [StopMatcher(stops, False) for _ in range(8)]
    for _ in range(20):
        for matcher in matchers:
            assert matcher.feed(" " * 64)[1] is None
    assert sum(pattern.text.looks for pattern in stops.all if isinstance(pattern.text, Counted)) <= 26 * 8 * 1100


def test_what_is_kept_of_where_characters_lead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.text.stop.MOST_KEPT", 8)
    stops = compile_stops(["abcdefgh", "x"])
    matcher = StopMatcher(stops, False)
    assert [matcher.feed(text) for text in ("abcdefg", "g", "abcdefgh")] == [("", None), ("abcdefgg", None), ("", "abcdefgh")]
    assert len(stops._steps) <= 4


def test_four_long_stops_against_long_text_held_back_throughout() -> None:
    """Ten thousand small pieces, all held: no piece costs more for what is held already."""
    stops = ["a" * 200_000 + end for end in "bcde"]
    matcher = StopMatcher(compile_stops(stops), False)
    for _ in range(10_000):
        assert matcher.feed("a" * 4) == ("", None)
    assert matcher.feed("b" * 2)[0] == "a" * 40_000 + "bb"


@pytest.mark.fault("A18")
def test_a_megabyte_of_stop_costs_nothing_until_it_is_nearly_there() -> None:
    stops = compile_stops(["x" * 1_000_000])
    assert StopMatcher(stops, False).feed("xxxy" * 100) == ("xxxy" * 100, None)
    assert len(stops.all[0]._borders) < 10


@given(
    st.lists(st.tuples(st.text("ab", max_size=4), st.booleans()), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3),
    st.booleans(),
)
def test_what_completes_unarmed_is_ordinary_text(pieces: list[tuple[str, bool]], stops: list[str], include: bool) -> None:
    """The stop is the first that ends on a character that came armed, wherever it began; the text is what comes before it."""
    whole = "".join(text for text, _ in pieces)
    armed = [flag for text, flag in pieces for _ in text]
    ends = [(end, stop) for end in range(1, len(whole) + 1) for stop in stops if armed[end - 1] and whole[:end].endswith(stop)]
    matcher = StopMatcher(compile_stops(stops), include)
    out, found = "", None
    for text, flag in pieces:
        final, found = matcher.feed(text, flag)
        out += final
        if found is not None:
            break
    if not ends:
        assert (found, out + matcher.flush()) == (None, whole)
        return
    end, stop = min(ends, key=lambda place: (place[0], -len(place[1])))
    assert (found, out) == (stop, whole[: end if include else end - len(stop)])
