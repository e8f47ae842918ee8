"""What steps cost and what drafts bring, and what follows from it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.backends.native.draft.costs import Costs
from quintet.backends.native.draft.policy import ALLOWANCE, CONTROL, CREDIT_STEPS, SAVED_STEPS, Policy


def costs(**known: float) -> Costs:
    made = Costs()
    for rows, seconds in known.items():
        made.learn(int(rows[1:]), seconds)
    return made


def policy(target: float = 0.04, draft: float = 0.01, row: float = 0.002) -> Policy:
    """One that has seen steps of both models."""
    made = Policy()
    for rows in (1, 16):
        made.target.learn(rows, target + row * (rows - 1))
        made.drafting.learn(rows, draft + row / 4 * (rows - 1))
    return made


# ---- costs


def test_between_what_was_seen_costs_are_on_a_line_and_beyond_it_as_well() -> None:
    known = costs(r1=0.04, r4=0.07, r16=0.19)
    assert known.of(1) == 0.04
    assert known.of(2) == pytest.approx(0.05)
    assert known.of(10) == pytest.approx(0.13)
    assert known.of(20) == pytest.approx(0.23)
    assert known.row(1) == pytest.approx((known.of(9) - 0.04) / 8)


def test_of_one_kind_of_step_others_are_guessed_and_of_none_nothing_is() -> None:
    assert costs().of(3) == 0.0 and not costs()
    known = costs(r1=0.04)
    assert known.of(1) == 0.04 < known.of(5) < 5 * 0.04
    assert 0 < costs(r8=0.1).of(1) < 0.1


def test_a_row_more_never_costs_less_than_nothing() -> None:
    assert costs(r1=0.04, r2=0.03, r8=0.02).row(1) == 0.0


def test_one_step_that_took_long_counts_little_and_what_lasts_is_learnt() -> None:
    known = costs(r1=0.04)
    for _ in range(10):
        known.learn(1, 0.04)
    known.learn(1, 100.0)
    assert known.of(1) < 0.06
    for _ in range(40):
        known.learn(1, 0.08)
    assert known.of(1) == pytest.approx(0.08, rel=0.01)


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(1e-4, 1.0)), min_size=1, max_size=40), st.integers(1, 300))
def test_costs_are_within_what_was_seen_wherever_there_is_something_on_both_sides(seen: list[tuple[int, float]], rows: int) -> None:
    known = Costs()
    for count, seconds in seen:
        known.learn(count, seconds)
    assert known.of(rows) >= 0.0
    if min(count for count, _ in seen) <= rows <= max(count for count, _ in seen):
        assert known.of(rows) <= max(seconds for _, seconds in seen) * 2


# ---- how far


def test_drafts_are_longer_the_more_often_they_are_right_and_the_less_they_cost() -> None:
    def length(made: Policy, share: float, sequences: int = 1) -> int:
        right, count = 1.0, 0
        while count < 50 and made.goes_on(right, share, sequences, sequences):
            right, count = right * share, count + 1
        return count

    made = policy()
    assert [length(made, share) for share in (0.1, 0.5, 0.8, 0.95)] == sorted(length(made, share) for share in (0.1, 0.5, 0.8, 0.95))
    assert length(made, 0.1) == 0 < length(made, 0.8) < length(policy(draft=0.002), 0.8)
    assert length(policy(draft=0.05), 0.99) == 0, "it costs more than it could save"
    assert length(made, 0.8, 4) <= length(made, 0.8), "several sequences share their steps anyway"


def test_what_a_draft_is_expected_to_save_is_what_it_saves_on_average() -> None:
    made, rng, share = policy(), random.Random(1), 0.8
    for most in (1, 3, 6):
        total = 0.0
        for _ in range(20_000):
            right = next((at for at in range(most) if rng.random() >= share), most)
            total += right * made.worth(1) - most * (made.drafting.of(1) + made.row_s(1))
        best = max(
            sum(share**at for at in range(1, length + 1)) * made.worth(1) - length * (made.drafting.of(1) + made.row_s(1))
            for length in range(1, most + 1)
        )
        assert made.gain(share, most, 1) == pytest.approx(best)
        assert total / 20_000 <= made.gain(share, most, 1) + 0.001


def test_confidence_is_learnt_by_what_came_of_it() -> None:
    made = policy()
    for _ in range(300):
        made.judge([0.95, 0.3], 1, wrong=True)
    assert made.confidence.of(0.97) > 0.95
    assert made.confidence.of(0.31) < 0.05
    assert made.share == pytest.approx(0.5, abs=0.1)
    made.judge([0.3], 0, wrong=False)  # there was nothing to compare it with
    assert made.confidence.of(0.31) < 0.05


# ---- what may be lost


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_estimates_say_no_more_is_lost_than_is_allowed(seed: int) -> None:
    """Costs that jump about, and drafts that are never right: who asks only while the account is above 0 loses a share and a start."""
    made, rng = policy(), random.Random(seed)
    begun, plain, lost, worst = made.account, 0.0, 0.0, 0.0
    for _ in range(3000):
        step, cost = 0.04 * rng.uniform(0.9, 1.1), 0.0
        drafted = rng.randint(1, 8) if made.account > 0 else 0
        if drafted:
            cost = 0.01 * drafted * rng.uniform(0.5, 2)
        made.settle(1, 1 + drafted, drafted, 0, cost, step + 0.002 * drafted)
        plain += step
        lost += cost + 0.002 * drafted
        worst = max(worst, lost - 1.6 * ALLOWANCE * (plain + lost))
    assert worst < begun + 0.3
    assert begun == pytest.approx(CREDIT_STEPS * 0.04)


@pytest.mark.parametrize("seed", range(8))
def test_on_a_busy_machine_no_more_is_lost_than_is_allowed(seed: int) -> None:
    """Steps that take half or thrice of what they should, as others use the machine too: what a wider step seems to save is not income."""
    made, rng = Policy(), random.Random(seed)
    plain = lost = 0.0

    def took(seconds: float) -> float:
        return seconds * rng.lognormvariate(0, 0.6)

    for rows in (1, 16, 1, 16):
        made.target.learn(rows, took(0.037 + 0.004 * (rows - 1)))
        made.drafting.learn(rows, took(0.013 + 0.001 * (rows - 1)))
    for _ in range(2000):
        drafted = 2 if not made.due(1) and made.tries(1, 1) else 0
        made.settle(1, 1 + drafted, drafted, 0, sum(took(0.013) for _ in range(drafted)), took(0.037 + 0.004 * drafted))
        plain, lost = plain + 0.037, lost + 0.017 * drafted
    assert 0 < lost < 2 * ALLOWANCE * plain, "allowed is one, and what the account begins with"


def test_what_is_saved_is_kept_for_later_but_not_without_end() -> None:
    made = policy()
    for _ in range(500):
        made.settle(1, 5, 4, 4, 0.04, 0.048)
    assert made.account == pytest.approx(SAVED_STEPS * made.target.of(1))
    assert made.reads(64, 1.0)
    assert not made.reads(64, 0.01), "it costs more than is saved"
    assert not made.reads(10**6, 1e9), "more than the account holds"
    assert 64 * made.saving(0.9, 6, 1) > 64 * made.saving(0.5, 6, 1) > 0.0 == made.saving(0.0, 6, 1)


def test_now_and_then_a_step_without_drafts_is_due() -> None:
    made = policy()
    made.settle(1, 1, 0, 0, 0.0, 0.04)
    due = 0
    for _ in range(CONTROL * 4):
        drafts = 0 if made.due(1) else 4
        due += not drafts
        made.settle(1, 1 + drafts, drafts, drafts, 0.01 * drafts, 0.04 + 0.002 * drafts)
    assert 3 <= due <= 4
