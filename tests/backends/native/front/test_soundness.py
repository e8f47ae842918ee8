"""A worker that computes no numbers any more: noticed by what different prompts come to, started again once, and then reported."""

from __future__ import annotations

import pytest
from tests.backends.native.front.supervised import READY, World, all_of, ready

from quintet.backends.base import Incidents, State
from quintet.backends.native.front.in_flight import INTERRUPTED
from quintet.backends.native.front.soundness import UNSOUND_AT
from quintet.backends.native.wire.messages import Died, EventRow, Started, TokenRow
from quintet.events import Blame, Finish

pytestmark = pytest.mark.fault("C09")

NO_NUMBER = EventRow(0, -1, finish=Finish.ERROR, error="no number", blame=Blame.NUMBERS)


def fail(world: World, *prompts: int) -> None:
    for prompt in prompts:
        world.run(prompt)
        world.step(prompt, NO_NUMBER)


def again(world: World) -> None:
    world.wait(0)
    world.link.say(READY)


def test_so_many_different_prompts_in_a_row_are_the_workers_fault_and_it_is_started_again() -> None:
    world = ready()
    fail(world, *range(1, UNSOUND_AT))
    assert world.state is State.READY
    fail(world, UNSOUND_AT)
    assert (world.state, world.link.kills, world.incidents) == (State.LOADING, 1, Incidents(unsound=1))
    again(world)
    assert (world.state, world.link.starts) == (State.READY, 2)


def test_one_prompt_sent_often_is_its_own_fault() -> None:
    world = ready()
    fail(world, *[7] * 10 * UNSOUND_AT)
    assert (world.state, world.link.kills) == (State.READY, 0)


@pytest.mark.parametrize("sign", [TokenRow(0, 97), EventRow(0, 97, finish=Finish.LENGTH)])
def test_a_token_between_them_is_a_sign_of_health(sign: TokenRow | EventRow) -> None:
    world = ready()
    for prompt in range(1, 10 * UNSOUND_AT):
        fail(world, prompt)
        world.run(1000 + prompt)
        world.step(1000 + prompt, sign)
    assert (world.state, world.link.kills) == (State.READY, 0)


def test_tokens_that_are_told_together_with_a_failure_came_before_it() -> None:
    """It once was no failure then, so how soon a worker was started again depended on how many steps were told together."""
    world = ready()
    fail(world, 1, 2)
    world.run(3)
    world.step(3, TokenRow(0, 97), NO_NUMBER)
    fail(world, *range(4, 2 + UNSOUND_AT))
    assert world.link.kills == 0
    fail(world, 100)
    assert world.link.kills == 1


@pytest.mark.parametrize(
    "row",
    [
        EventRow(0, -1, finish=Finish.ERROR, error="its own controls", blame=Blame.REQUEST),
        EventRow(0, -1, finish=Finish.ERROR, error="its step broke"),
        EventRow(0, -1, finish=Finish.ABORT),
    ],
)
def test_other_ends_are_no_sign_of_either(row: EventRow) -> None:
    world = ready()
    for prompt in range(1, 3 * UNSOUND_AT):
        world.run(prompt)
        world.step(prompt, row)
    assert world.link.kills == 0
    fail(world, *range(100, 100 + UNSOUND_AT - 1))
    world.run(1)
    world.step(1, row)
    fail(world, 200)
    assert world.link.kills == 1


def test_what_waits_is_run_again_and_none_of_it_is_suspected() -> None:
    world = ready()
    begun, waiting = world.run(50), world.run(51)
    world.link.say(Started((50,)))
    fail(world, *range(UNSOUND_AT))
    world.told()
    again(world)
    assert world.told() == [50, 51], "at once, and beside each other"
    assert all_of(begun) == all_of(waiting) == []


def test_what_was_delivered_in_part_breaks_off() -> None:
    world = ready()
    seen = world.run(50)
    world.step(50, TokenRow(0, 97))
    fail(world, *range(UNSOUND_AT))
    assert (all_of(seen)[-1].finish, all_of(seen)[-1].error) == (Finish.ERROR, INTERRUPTED)


def test_if_it_goes_on_it_is_reported_and_not_started_again_until_a_token_comes(caplog: pytest.LogCaptureFixture) -> None:
    world = ready()
    fail(world, *range(UNSOUND_AT))
    again(world)
    fail(world, *range(UNSOUND_AT - 1))
    assert world.state is State.READY
    fail(world, *range(10, 10 + 3 * UNSOUND_AT))
    assert (world.state, world.link.kills, world.incidents.unsound) == (State.UNSOUND, 1, 1)
    assert sum("unsound" in line for line in caplog.messages) == 1, "told once"
    world.run(99)
    assert 99 in world.told(), "work is taken: it may be well again"
    world.step(99, TokenRow(0, 97))
    assert world.state is State.READY
    fail(world, *range(UNSOUND_AT))
    assert (world.state, world.link.kills) == (State.LOADING, 2)


def test_what_a_worker_came_to_says_nothing_of_the_one_after_it() -> None:
    world = ready()
    fail(world, *range(UNSOUND_AT - 1))
    world.link.say(Died("it ended."))
    again(world)
    fail(world, *range(10, 10 + UNSOUND_AT - 1))
    assert (world.state, world.link.kills) == (State.READY, 0)


def test_a_worker_that_cannot_be_started_again_is_reported_at_once() -> None:
    world = ready(restarts=False)
    fail(world, *range(UNSOUND_AT))
    assert (world.state, world.link.kills) == (State.UNSOUND, 0)
