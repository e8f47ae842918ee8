"""When the front is told of tokens: how long each may be kept back, and that none is lost or overtaken."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.backends.native.schedule.delivery import CROWD, CROWD_S, END_S, FRAME_S, SILENCE_S, Delivery, urgent
from quintet.backends.native.wire.messages import EventRow, Events, Row, ScoredRow, TokenRow
from quintet.events import Finish
from quintet.inputs.sequence import Urgency

STEP_S = 0.01


def token(number: int, seq: int = 0) -> Row:
    return TokenRow(seq, number)


def last(number: int, seq: int = 0) -> Row:
    return EventRow(seq, number, finish=Finish.LENGTH)


class World:
    """Steps of ``STEP_S``, one after the other."""

    def __init__(self, *urgencies: Urgency, sequences: int = 1) -> None:
        self.now = 100.0
        self.delivery = Delivery(self.now)
        for request_id, urgency in enumerate(urgencies):
            self.delivery.begin(request_id, urgency, sequences)

    def step(self, events: Events, running: int = 1, seconds: float = STEP_S) -> Events | None:
        self.now += seconds
        return self.delivery.step(events, running, self.now)

    def waits(self, running: int, seconds: float = STEP_S, steps: int = 200) -> list[int]:
        """Steps between two tellings of request 0, which gets a token in each."""
        told = [at for at in range(steps) if (self.step({0: [token(at)]}, running, seconds) or {}).get(0)]
        return [second - first for first, second in itertools.pairwise(told)]


@pytest.mark.parametrize("running", [1, CROWD, 4 * CROWD])
def test_tokens_that_decide_something_come_with_their_step(running: int) -> None:
    assert set(World(Urgency.NOW).waits(running)) == {1}


def test_a_request_that_was_never_begun_is_told_at_once() -> None:
    assert World().step({7: [last(-1)]}, CROWD) == {7: [last(-1)]}


def test_a_stream_gets_each_step_that_takes_longer_than_a_frame_at_once_until_there_is_a_crowd() -> None:
    assert set(World(Urgency.SOON).waits(CROWD - 1)) == {1}
    assert set(World(Urgency.SOON).waits(CROWD)) <= {4, 5}  # CROWD_S, in steps of 10 ms, whatever rounding makes of it


def test_a_stream_gets_as_many_short_steps_together_as_a_frame_has() -> None:
    assert set(World(Urgency.SOON).waits(1, FRAME_S / 3.5)) == {4}
    assert set(World(Urgency.NOW).waits(1, FRAME_S / 3.5)) == {1}


def test_a_stream_whose_steps_take_long_gets_each_at_once_in_any_crowd() -> None:
    world = World(Urgency.SOON)
    assert all(world.step({0: [token(at)]}, CROWD, CROWD_S * 1.01) for at in range(20))


def test_what_is_shown_at_its_end_comes_a_few_times_a_second_alone_or_in_a_crowd() -> None:
    for running in (1, CROWD):
        assert set(World(Urgency.END).waits(running)) <= {25, 26}  # END_S


@pytest.mark.parametrize("urgency", [Urgency.SOON, Urgency.END])
@pytest.mark.parametrize(
    "row", [EventRow(0, 5, waited=0.1), last(5), EventRow(0, -1, finish=Finish.ABORT), ScoredRow(0, 5, -1.0, (), True)]
)
def test_what_begins_or_ends_something_or_is_of_the_prompt_is_told_at_once_after_what_was_kept(urgency: Urgency, row: Row) -> None:
    world = World(urgency)
    while world.step({0: [token(1)]}, CROWD) is not None:
        assert not urgent({0: [token(1)]})
    world.step({0: [token(2)]}, CROWD)
    assert world.step({0: [token(3), row]}, CROWD) == {0: [token(1), token(2), token(3), row]}
    assert urgent({1: [token(1)], 0: [token(3), row]})


def test_others_of_the_crowd_stay_where_they_are_when_one_is_told() -> None:
    world = World(Urgency.SOON, Urgency.SOON)
    while world.step({0: [token(1)], 1: [token(1)]}, CROWD) is not None:
        pass
    assert world.step({0: [last(2)], 1: [token(2)]}, CROWD) == {0: [token(1), last(2)]}


def test_a_request_counts_until_the_last_of_its_sequences_has_ended() -> None:
    world = World(Urgency.END, sequences=2)
    world.step({0: [last(1, 0), token(1, 1)]})
    assert not world.step({0: [token(2, 1)]})
    assert world.step({0: [last(3, 1)]}) == {0: [token(2, 1), last(3, 1)]}
    assert world.step({0: [token(4)]}) == {0: [token(4)]}, "it is forgotten"


def test_before_a_long_step_streams_get_what_was_kept_of_theirs() -> None:
    world = World(Urgency.SOON, Urgency.END)
    while world.step({0: [token(1)], 1: [token(1)]}, CROWD) is not None:
        pass
    assert world.delivery.streams(world.now) == {0: [token(1)]}
    assert world.delivery.streams(world.now) == {}


def test_steps_are_told_of_though_nothing_came_of_them() -> None:
    world, silent = World(Urgency.END), 0.0
    for _ in range(100):
        silent = 0.0 if world.step({0: [token(1)]}) is not None else silent + STEP_S
        assert silent <= SILENCE_S + STEP_S / 2


STEPS = st.tuples(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=6), st.sampled_from([1, CROWD]), st.sampled_from([0.003, 0.02, 0.3])
)


@given(st.lists(st.sampled_from(Urgency), min_size=1, max_size=4), st.lists(STEPS, max_size=60))
def test_every_event_is_told_once_in_its_order_and_none_later_than_promised(
    urgencies: list[Urgency], steps: list[tuple[list[tuple[int, bool]], int, float]]
) -> None:
    world, came, told = World(*urgencies, sequences=1000), dict[int, list[Row]](), dict[int, list[Row]]()
    since: dict[int, float] = {}
    for number, (rows, running, seconds) in enumerate(steps):
        events: Events = {}
        for request, ends in rows:
            events.setdefault(request % len(urgencies), []).append(last(number) if ends else token(number))
        for request, new in events.items():
            came.setdefault(request, []).extend(list(new))
            since.setdefault(request, world.now + seconds)
        for request, new in (world.step(events, running, seconds) or {}).items():
            assert new, "nobody is woken for nothing"
            told.setdefault(request, []).extend(new)
            del since[request]
        for request, begin in since.items():
            most = {Urgency.NOW: -1.0, Urgency.SOON: CROWD_S, Urgency.END: END_S}[urgencies[request]]
            assert world.now - begin < most
    world.step({}, 1, END_S)
    for request in since:
        assert told.get(request, []) == came[request][: len(told.get(request, []))]
    for request in came.keys() - since.keys():
        assert told[request] == came[request]
