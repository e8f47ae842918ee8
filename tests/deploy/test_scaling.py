"""How many replicas there are to be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quintet.deploy.scaling import Scaler, Sizing

SIZING = Sizing(least=1, most=4, up_after=5.0, down_after=60.0)


def test_work_that_waits_for_long_enough_adds_as_many_as_it_needs() -> None:
    scaler = Scaler(SIZING, 10)
    assert [scaler.wanted(now, 1, 0, 15, 25) for now in (0.0, 4.9, 5.0)] == [1, 1, 3]
    assert scaler.wanted(20.0, 3, 2, 15, 25) == 3  # they are on their way
    assert [scaler.wanted(now, 3, 0, 50, 80) for now in (30.0, 35.0)] == [3, 4]


def test_a_queue_that_empties_in_between_adds_none() -> None:
    scaler = Scaler(SIZING, 10)
    assert [scaler.wanted(now, 1, 0, waiting, 12) for now, waiting in ((0.0, 2), (3.0, 0), (4.0, 2), (8.0, 2))] == [1, 1, 1, 1]
    assert scaler.wanted(9.0, 1, 0, 2, 12) == 2


def test_what_waits_for_pages_and_not_for_places_adds_one() -> None:
    scaler = Scaler(SIZING, 10)
    assert [scaler.wanted(now, 2, 0, 1, 5) for now in (0.0, 5.0)] == [2, 3]


def test_one_at_a_time_goes_once_the_others_have_long_had_room_enough() -> None:
    scaler = Scaler(SIZING, 10)
    assert [scaler.wanted(now, 3, 0, 0, 14) for now in (0.0, 59.0, 60.0)] == [3, 3, 2]
    assert [scaler.wanted(now, 2, 0, 0, 14) for now in (61.0, 500.0)] == [2, 2]  # 14 are more than 0.7 of 10
    assert [scaler.wanted(now, 2, 0, 0, 7) for now in (501.0, 560.0, 561.0)] == [2, 2, 1]
    assert scaler.wanted(900.0, 1, 0, 0, 0) == 1


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 50), st.integers(0, 200)), max_size=50))
def test_there_are_never_fewer_than_the_least_or_more_than_the_most(steps: list[tuple[float, int, int]]) -> None:
    scaler, now, replicas = Scaler(Sizing(2, 5, 1.0, 10.0), 16), 0.0, 2
    for pause, waiting, live in steps:
        now += pause
        before, replicas = replicas, scaler.wanted(now, replicas, 0, waiting, live)
        assert 2 <= replicas <= 5
        assert replicas >= before - 1
