"""How far an output follows a prediction: the counts of the usage, and what is drafted next."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.prediction import GRAM, Follower, Predicted


def follow(predicted: str, output: str) -> tuple[int, str]:
    """Tokens found in the output, and what is guessed next; each letter is a token."""
    follower = Follower(Predicted([ord(letter) for letter in predicted]))
    for letter in output:
        follower.feed(ord(letter))
    return follower.matched, "".join(map(chr, follower.guess(3)))


@pytest.mark.parametrize(
    ("predicted", "output", "matched", "next_"),
    [
        ("abcdefgh", "", 0, "abc"),
        ("abcdefgh", "ab", 2, "cde"),
        ("abcdefgh", "abcdefgh", 8, ""),
        ("abcdefgh", "abcdefghxyz", 8, ""),
        ("abcdefgh", "abX", 2, ""),
        ("abcdefgh", "abXdef", 5, "gh"),  # one replaced
        ("abcdefgh", "abXXcde", 5, "fgh"),  # two put in
        ("abcdefgh", "abefg", 5, "h"),  # two left out
        ("abcdefgh", "xyzabc", 3, "def"),
        ("abcdefgh", "xyz", 0, ""),
        ("abcabcd", "Xabc", 3, "abc"),  # the first place that is left
        ("abcabcd", "abcXabc", 6, "d"),
        ("abcabcd", "abcabcdXabc", 7, ""),  # a token counts once
        ("ab", "Xab", 0, ""),
        ("", "abc", 0, ""),
    ],
)
def test_an_output_leaves_and_comes_back(predicted: str, output: str, matched: int, next_: str) -> None:
    assert follow(predicted, output) == (matched, next_)


def longest_common(first: str, second: str) -> int:
    """Of their common subsequences, the longest: no other way to align them finds more."""
    row = [0] * (len(second) + 1)
    for one in first:
        before = row[:]
        for at, other in enumerate(second, 1):
            row[at] = before[at - 1] + 1 if one == other else max(row[at - 1], before[at])
    return row[-1]


texts = st.text("abc", max_size=30)


@settings(deadline=None)
@given(texts, texts, texts)
def test_no_token_counts_twice_or_out_of_order(predicted: str, output: str, edit: str) -> None:
    assert follow(predicted, output)[0] <= longest_common(predicted, output)
    assert follow(predicted, predicted)[0] == len(predicted)
    unlike = edit.upper()
    kept = follow(predicted, unlike + predicted)[0]
    assert kept == len(predicted) if not unlike else kept in (0, len(predicted)) or len(set(predicted)) < GRAM or kept >= GRAM


@settings(deadline=None)
@given(texts, st.lists(texts, max_size=4))
def test_outputs_that_follow_one_prediction_do_so_as_if_alone(predicted: str, outputs: list[str]) -> None:
    shared = Predicted([ord(letter) for letter in predicted])
    followers = [Follower(shared) for _ in outputs]
    for at in range(30):
        for follower, output in zip(followers, outputs, strict=True):
            if at < len(output):
                follower.feed(ord(output[at]))
    assert [follower.matched for follower in followers] == [follow(predicted, output)[0] for output in outputs]


def test_a_prediction_s_index_is_made_once_for_all_outputs_and_not_before_it_can_find_anything() -> None:
    """It is megabytes for a long prediction, and a request may have a thousand choices."""
    predicted = Predicted(random.Random(0).sample(range(100_000), 10_000))
    followers = [Follower(predicted) for _ in range(64)]

    def more(tokens: int) -> int:
        tracemalloc.start()
        try:
            for follower in followers:
                for _ in range(tokens):
                    follower.feed(-1)
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert more(GRAM - 1) < 1 << 16
    assert 1 << 20 < more(1) < 1 << 22
