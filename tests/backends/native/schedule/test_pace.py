"""How much a step may compute while somebody reads along."""

from __future__ import annotations

from quintet.backends.native.schedule.pace import LEAST, STEP_S, Pace


def test_a_step_may_take_all_as_long_as_nothing_is_known() -> None:
    assert Pace().limit(256) == 256


def test_a_step_takes_as_many_tokens_as_were_computed_in_its_time_lately() -> None:
    pace = Pace()
    pace.learn(100, 0.1)
    assert pace.limit(256) == round(1000 * STEP_S)
    for _ in range(60):
        pace.learn(100, 0.05)
    assert 199 <= pace.limit(256) <= 200
    assert pace.limit(64) == 64


def test_small_steps_tell_nothing_and_slow_ones_leave_some_tokens() -> None:
    pace = Pace()
    pace.learn(LEAST - 1, 10.0)
    assert pace.limit(256) == 256
    pace.learn(LEAST, 100.0)
    assert pace.limit(256) == LEAST
