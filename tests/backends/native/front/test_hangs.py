"""When a worker gets no further, or does not answer: it is killed, and what clients are told meanwhile."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.backends.native.front.supervised import READY, World, ready

from quintet.backends.base import Incidents, State
from quintet.backends.native.front.pressure import LOOK_S
from quintet.backends.native.front.restarts import GIVEN_UP, pause
from quintet.backends.native.front.watchdog import DRAIN_STALL_S, LOAD_STALL_S, RECENT_S, SLOW_STEPS, STALL_S, Watchdog
from quintet.backends.native.wire.messages import (
    Died,
    EventRow,
    Progress,
    Ready,
    TokenRow,
)
from quintet.events import Finish

# ---- hangs


@pytest.mark.fault("C03")
def test_a_worker_that_finishes_no_step_while_work_waits_is_killed_and_an_idle_one_is_not() -> None:
    world = ready()
    world.wait(10 * STALL_S)
    assert (world.state, world.link.kills) == (State.READY, 0)
    world.run(1)
    world.wait(STALL_S)
    assert (world.state, world.link.kills) == (State.READY, 0)
    world.wait(1.0)
    assert world.link.kills == 1
    world.link.say(READY)
    assert world.told() == [1, 1]


@pytest.mark.fault("C03")
def test_a_worker_that_has_nothing_to_do_and_does_not_answer_is_killed_and_not_ready_meanwhile() -> None:
    world = ready()
    world.wait(100 * STALL_S)
    assert (world.state, world.link.kills) == (State.READY, 0), "it answers"
    world.link.deaf = True
    states = set()
    while not world.link.kills:
        world.wait(0.25)
        states.add(world.state)
        assert world.now < 100 + 102 * STALL_S
    assert states == {State.READY, State.STALLED, State.LOADING}
    assert world.incidents == Incidents(hung=1)
    world.link.deaf = False
    world.link.say(READY)
    world.wait(100 * STALL_S)
    assert (world.state, world.link.kills) == (State.READY, 1)


def test_a_long_step_is_forgotten_some_minutes_later() -> None:
    """Else a machine that was busy once would never again notice a hang."""
    world = ready()
    world.run(1)
    world.wait(STALL_S - 1)
    world.step(1, TokenRow(0, 97))
    for steps in range(2, 2 + int(2 * RECENT_S)):
        world.wait(1.0)
        world.step(1, TokenRow(0, 97), steps=steps)
    world.wait(STALL_S + 1)
    assert world.link.kills == 1


@pytest.mark.fault("C03", "D10")
def test_a_steps_time_counts_for_a_minute_at_least_and_for_two_at_most_and_for_no_other_worker() -> None:
    by_looks, by_steps = Watchdog(0.0), Watchdog(0.0)
    for one in (by_looks, by_steps):
        one.stepped(STALL_S)
    for now, stall_s in ((RECENT_S, SLOW_STEPS * STALL_S), (2 * RECENT_S - 1, SLOW_STEPS * STALL_S), (2 * RECENT_S, STALL_S)):
        by_looks.look(now)
        by_steps.moved(now)
        by_steps.stepped(now)
        assert (by_looks.stall_s, by_steps.stall_s) == (stall_s, stall_s)
    late, next_one = Watchdog(0.0), Watchdog(0.0)
    for one in (late, next_one):
        one.stepped(STALL_S)
    late.look(2 * RECENT_S)
    next_one.ready(STALL_S, 0.0)
    assert (late.stall_s, next_one.stall_s) == (STALL_S, STALL_S)


@pytest.mark.fault("C03")
def test_a_late_answer_to_a_question_is_no_long_step() -> None:
    """A hang would be noticed four times as late after it."""
    world = ready()
    world.link.deaf = True
    world.wait(STALL_S - 3)
    world.link.deaf = False
    world.wait(STALL_S)
    assert world.link.kills == 0
    world.run(1)
    world.wait(STALL_S + 1)
    assert world.link.kills == 1


def test_what_a_worker_was_killed_for_is_not_told_of_the_next_ones_death() -> None:
    world = ready()
    world.run(1)
    world.wait(STALL_S + 1)
    world.link.say(READY)
    world.link.say(Died("it ended."))
    assert world.incidents == Incidents(hung=1, crashed=1)


@pytest.mark.fault("D03")
def test_while_it_drains_a_hang_is_noticed_within_the_five_seconds_that_an_end_may_take() -> None:
    world = ready()
    world.run(1)
    world.made.drain()
    world.wait(DRAIN_STALL_S)
    assert world.link.kills == 0
    world.wait(5.0 - DRAIN_STALL_S - 0.5)
    assert world.link.kills == 1


def test_a_step_now_and_then_is_progress() -> None:
    world = ready()
    world.run(1)
    for steps in range(1, 20):
        world.wait(STALL_S - 1)
        world.step(1, TokenRow(0, 97), steps=steps)
    assert world.link.kills == 0


@pytest.mark.fault("D10")
def test_a_worker_whose_steps_take_long_is_given_longer_from_the_start_or_as_they_are_seen() -> None:
    told, seen = World(), ready()
    told.link.say(Ready(model="toy", context=100, vocab=257, max_logprobs=5, max_sequences=8, fingerprint="fp", step_s=STALL_S))
    seen.run(1)
    seen.wait(STALL_S - 1)
    seen.step(1, TokenRow(0, 97))
    for world, step_s in ((told, STALL_S), (seen, STALL_S - 1)):
        world.run(2)
        world.wait(SLOW_STEPS * step_s)
        assert (world.state, world.link.kills) == (State.READY, 0)
        world.wait(SLOW_STEPS)
        assert world.link.kills == 1


def slow(step_s: float) -> World:
    """Ready, and told that its steps may take so long."""
    world = World()
    world.link.say(structs.replace(READY, step_s=step_s))
    return world


@pytest.mark.fault("C03")
def test_without_work_a_hang_is_noticed_as_soon_as_ever_however_long_a_step_may_take() -> None:
    world = slow(2 * STALL_S)
    world.wait(10 * STALL_S)
    world.link.deaf = True
    world.wait(STALL_S - LOOK_S)
    assert world.link.kills == 0
    world.wait(2 * LOOK_S + 0.1)
    assert world.link.kills == 1


@pytest.mark.fault("D10")
def test_a_process_that_stood_still_does_not_blame_a_worker_without_work_whose_steps_may_take_long() -> None:
    world = slow(2 * STALL_S)
    world.wait(1.0)
    world.now += STALL_S + 1
    world.wait(STALL_S)
    assert (world.state, world.link.kills) == (State.READY, 0)


@pytest.mark.fault("D03")
def test_while_it_drains_a_step_may_take_as_long_as_was_estimated_and_a_hang_is_noticed_soon_after() -> None:
    """It was waited for four times as long, which is longer than a drain may take."""
    world = slow(STALL_S)
    world.run(1)
    world.made.drain()
    world.wait(STALL_S)
    assert (world.state, world.link.kills) == (State.READY, 0)
    world.wait(1.0)
    assert world.link.kills == 1


@pytest.mark.fault("D10")
def test_a_process_that_stood_still_itself_does_not_blame_the_worker() -> None:
    world = ready()
    world.run(1)
    world.wait(1.0)
    world.now += 100 * STALL_S  # no timer ran meanwhile
    assert world.state is State.STALLED, "what is known now"
    world.wait(STALL_S)
    assert world.link.kills == 0
    world.wait(1.0)
    assert world.link.kills == 1, "unless it goes on like that"


def test_a_restart_that_says_nothing_is_killed_and_the_first_start_is_its_users_to_watch() -> None:
    world = World()
    world.run(1)
    world.wait(10 * LOAD_STALL_S)
    assert world.link.kills == 0
    world = ready()
    world.link.say(Died("it ended."))
    world.wait(LOAD_STALL_S - 1)
    world.link.say(Progress(0.5))
    world.wait(LOAD_STALL_S - 1)
    assert world.link.kills == 0
    world.wait(2.0)
    assert world.link.kills == 1


def test_a_first_start_that_nobody_watches_is_killed_when_it_says_nothing_and_tells_that_there_is_no_engine() -> None:
    world = World(watched=True)
    world.wait(LOAD_STALL_S - 1)
    world.link.say(Progress(0.5))
    world.wait(LOAD_STALL_S - 1)
    assert (world.state, world.link.kills) == (State.LOADING, 0)
    world.wait(100 * LOAD_STALL_S)
    assert (world.state, world.made.tried_on, world.link.kills, world.link.starts) == (State.DEAD, False, 1, 1)
    assert (str(world.made.failure), world.incidents) == ("the engine was killed.", Incidents(hung=1))


def test_a_first_start_that_is_watched_and_dies_is_counted_and_one_that_comes_up_is_as_any_other() -> None:
    world = World(watched=True)
    world.link.say(Died("it ended."))
    assert (world.state, world.incidents) == (State.DEAD, Incidents(crashed=1))
    world = World(watched=True)
    world.link.say(READY)
    world.wait(10 * STALL_S)
    world.link.say(Died("it ended."))
    world.wait(0)
    assert (world.state, world.link.starts, world.incidents) == (State.LOADING, 2, Incidents(crashed=1))


# ---- when to come again


@pytest.mark.fault("B18")
def test_who_is_refused_is_told_how_long_the_queue_needs() -> None:
    world = ready()
    for request_id in range(1, 201):
        world.run(request_id)
    for request_id in range(1, 101):  # ten end in each second
        world.wait(0.1)
        world.step(request_id, EventRow(0, 98, finish=Finish.LENGTH), steps=request_id)
    assert world.retry(100) == pytest.approx(10.0, rel=0.05)
    assert world.retry(0) == 1.0, "never at once"
    assert world.retry(10_000) == 48.0, "nor later than clients wait"
    assert world.retry(draining=True) == pytest.approx(10.0, rel=0.05), "the start was immediate here"


def test_while_a_worker_is_started_clients_are_told_when_it_will_be_ready() -> None:
    world = World()
    world.wait(20.0)
    world.link.say(Progress(0.5))
    assert world.retry() == pytest.approx(20.0)
    world.wait(20.0)
    world.link.say(READY)
    world.link.say(Died("it ended."))
    world.wait(0)
    world.wait(10.0)
    assert world.retry() == pytest.approx(30.0), "of the 40 s that the last start took"
    for _ in range(GIVEN_UP + 2):
        world.link.say(Died("it ended."))
        world.wait(pause(100))
    world.link.say(Died("it ended."))
    assert (world.state, world.made.tried_on) == (State.DEAD, True)
    assert world.retry() == 48.0, "30 s until the next start, and 40 s for it"
