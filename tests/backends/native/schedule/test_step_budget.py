"""How much a step may compute while somebody reads along."""

from __future__ import annotations

from quintet.backends.native.schedule.step_budget import LEAST, STEP_S, StepBudget


def test_a_step_may_take_all_as_long_as_nothing_is_known() -> None:
    assert StepBudget().limit(256) == 256


def test_a_step_takes_as_many_tokens_as_were_computed_in_its_time_lately() -> None:
    step_budget = StepBudget()
    step_budget.learn(100, 0.1)
    assert step_budget.limit(256) == round(1000 * STEP_S)
    for _ in range(60):
        step_budget.learn(100, 0.05)
    assert 199 <= step_budget.limit(256) <= 200
    assert step_budget.limit(64) == 64


def test_small_steps_tell_nothing_and_slow_ones_leave_some_tokens() -> None:
    step_budget = StepBudget()
    step_budget.learn(LEAST - 1, 10.0)
    assert step_budget.limit(256) == 256
    step_budget.learn(LEAST, 100.0)
    assert step_budget.limit(256) == LEAST
