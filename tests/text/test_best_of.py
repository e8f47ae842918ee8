"""The best of several candidates, event by event."""

from __future__ import annotations

from collections.abc import Sequence

from quintet.events import ChoiceDelta, ChoiceDone, Finish, TokenEvent
from quintet.text.best_of import BestOf


def feed(to: BestOf, seq: int, logprobs: Sequence[float], finish: Finish = Finish.EOS) -> list[ChoiceDelta | ChoiceDone]:
    """A candidate's tokens, which are ``a`` each, and its end."""
    told: list[ChoiceDelta | ChoiceDone] = []
    for logprob in logprobs:
        told += to.feed(TokenEvent(seq, 1, b"a", logprob), [ChoiceDelta(seq, "a")])
    return told + to.feed(TokenEvent(seq, -1, finish=finish), [ChoiceDone(seq, finish, "", seq)])


def test_the_rank_is_the_mean_over_a_candidates_own_tokens_whatever_their_number() -> None:
    best = BestOf(2, 1)
    assert feed(best, 0, [-1.0]) == [], "the other is not done"
    assert [event.seed for event in feed(best, 1, [-0.9] * 4) if isinstance(event, ChoiceDone)] == [1]


def test_a_token_that_makes_no_text_yet_counts_too() -> None:
    best = BestOf(2, 1)
    assert best.feed(TokenEvent(0, 1, b"\xe2", -9.0), []) == []
    feed(best, 0, [-0.1])
    assert [event.seed for event in feed(best, 1, [-1.0]) if isinstance(event, ChoiceDone)] == [1]


def test_what_was_held_comes_as_the_first_delta_the_others_in_one_and_the_end() -> None:
    """The first may be the prompt. Choices have numbers of their own, one prompt's after the other's."""
    best = BestOf(2, 1)
    feed(best, 2, [-2.0])
    end = ChoiceDone(1, Finish.EOS, "", 3)
    assert feed(best, 3, [-1.0] * 3) == [ChoiceDelta(1, "a"), ChoiceDelta(1, "aa"), end]


def test_a_candidate_that_was_called_off_is_told_before_all_that_were_not() -> None:
    best = BestOf(3, 2)
    feed(best, 3, [-0.1])
    feed(best, 4, [-9.0], Finish.ABORT)
    ends = [event for event in feed(best, 5, [-0.2]) if isinstance(event, ChoiceDone)]
    assert [(end.index, end.seed) for end in ends] == [(2, 4), (3, 3)]
