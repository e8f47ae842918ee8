"""What ``Retry-After`` is made of: how fast sequences end, and chance."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.backends.native.front.pace import LEAST_S, MOST_S, SPREAD, Pace


def steady(per_second: int, seconds: int) -> Pace:
    pace = Pace(0.0, lambda: 0.0)
    pace.see(0.0, 0, working=True)
    for second in range(1, seconds + 1):
        pace.see(float(second), per_second * second, working=True)
    return pace


@given(st.integers(1, 200), st.integers(60, 600), st.integers(0, 10_000))
def test_a_steady_rate_is_measured(per_second: int, seconds: int, queue: int) -> None:
    assert steady(per_second, seconds).until_done(queue) == pytest.approx(queue / per_second, rel=0.1)


def test_what_is_new_counts_more_than_what_is_old() -> None:
    pace = steady(100, 300)
    for second in range(301, 601):
        pace.see(float(second), 30_000 + second - 300, working=True)
    assert pace.until_done(10) == pytest.approx(10, rel=0.1)


def test_time_without_work_tells_nothing() -> None:
    pace = steady(10, 100)
    pace.see(100.0, 1000, working=False)
    pace.see(10_000.0, 1000, working=True)
    assert pace.until_done(100) == pytest.approx(10.0, rel=0.1)


@pytest.mark.fault("B18")
def test_those_who_are_refused_together_do_not_come_back_together() -> None:
    pace = Pace(0.0, random.Random(1).random)
    for seconds in (0.0, 20.0, 1e9):
        told = sorted(pace.told(seconds) for _ in range(1000))
        least = min(max(seconds, LEAST_S), MOST_S)
        assert least <= told[0] <= told[-1] <= least * (1 + SPREAD) <= 60
        waves = [
            sum(low <= one < low + least * SPREAD / 10 for one in told)
            for low in (least * (1 + SPREAD * tenth / 10) for tenth in range(10))
        ]
        assert max(waves) < 150, "spread evenly over the time that is added"
