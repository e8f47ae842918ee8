"""A worker's lives: what its supervisor does at each of its messages."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from tests.backends.native.front.supervised import READY, World, all_of, ready

from quintet.backends.base import Incidents, Pages, State
from quintet.backends.native.front.in_flight import INTERRUPTED
from quintet.backends.native.front.restarts import AT_ONCE, GIVEN_UP, OFTEN, pause
from quintet.backends.native.front.supervisor import DIED
from quintet.backends.native.wire.messages import (
    Abort,
    Died,
    EventRow,
    Progress,
    Ready,
    Started,
    TokenRow,
)
from quintet.errors import EngineFailed, ModelError
from quintet.events import Finish

# ---- what goes well


def test_work_that_comes_while_the_model_loads_is_told_when_it_is_ready() -> None:
    world = World()
    world.link.say(Progress(0.5))
    world.run(1)
    assert (world.state, world.made.progress, world.made.tokenizer, world.told()) == (State.LOADING, 0.5, None, [])
    world.link.say(READY)
    assert (world.state, world.made.progress, world.told()) == (State.READY, 1.0, [1])
    assert world.made.tokenizer is world.link.tokenizer
    assert world.made.capabilities is not None
    assert world.made.capabilities.model == "toy"


def test_the_bytes_of_a_token_are_added_here() -> None:
    world = ready()
    stream = world.run(1)
    world.step(1, TokenRow(0, ord("a")))
    world.step(1, EventRow(0, ord("b"), finish=Finish.LENGTH), steps=2)
    assert [(event.piece, event.finish) for event in all_of(stream)] == [(b"a", None), (b"b", Finish.LENGTH)]


# ---- deaths


def test_a_worker_that_died_is_started_again_at_once_and_what_nobody_saw_a_part_of_is_run_again(caplog: pytest.LogCaptureFixture) -> None:
    world = ready()
    seen, unseen, whole = world.run(1), world.run(2), world.run(3, shown=False)
    world.link.say(Started((1, 2, 3)))
    world.step(1, TokenRow(0, 97))
    world.step(3, TokenRow(0, 97))
    world.told()
    world.link.say(Died("it ended."))
    assert caplog.messages == ["it ended. It is started again.", "of the engine's requests 1 broke off, and 2 are run again"]
    assert (all_of(seen)[-1].finish, all_of(seen)[-1].error) == (Finish.ERROR, INTERRUPTED)
    assert (world.state, all_of(unseen)) == (State.LOADING, [])
    world.wait(0)
    assert world.link.starts == 2
    world.link.say(READY)
    assert (world.state, world.told()) == (State.READY, [2])
    world.step(2, TokenRow(0, 98))
    assert world.told() == [3]
    world.step(3, TokenRow(0, 97))
    assert len(all_of(whole)) == 1, "it had this one"
    world.step(3, EventRow(0, 99, finish=Finish.LENGTH))
    assert [event.token for event in all_of(whole)] == [97, 99]


@pytest.mark.parametrize(("end", "kind"), [(Died("no such file", True), ModelError), (Died("it broke."), EngineFailed)])
def test_an_engine_that_never_was_ready_is_dead_for_good_and_tells_why(end: Died, kind: type[Exception]) -> None:
    world = World()
    stream = world.run(1)
    world.link.say(end)
    world.wait(1000)
    assert (world.state, world.link.starts, str(world.made.failure)) == (State.DEAD, 1, end.reason)
    assert isinstance(world.made.failure, kind)
    assert [(event.finish, event.error) for event in all_of(stream)] == [(Finish.ERROR, DIED)]
    assert [(event.finish, event.error) for event in all_of(world.run(2))] == [(Finish.ERROR, DIED)]


def test_a_worker_that_cannot_be_restarted_takes_the_engine_with_it() -> None:
    world = ready(restarts=False)
    stream = world.run(1)
    world.link.say(Died("it broke."))
    world.wait(1000)
    assert (world.state, world.link.starts, all_of(stream)[-1].error) == (State.DEAD, 1, DIED)


@pytest.mark.fault("D12")
def test_starts_that_fail_are_spread_out_and_the_engine_given_up_and_one_that_succeeds_revives_it() -> None:
    world = ready()
    world.link.say(Died("it ended."))
    starts = []
    for failures in range(1, GIVEN_UP + 3):
        while world.link.starts == failures:
            world.wait(0.25)
        starts.append(world.now)
        stream = world.run(failures)
        assert world.state is (State.LOADING if failures <= GIVEN_UP else State.DEAD)
        assert bool(all_of(stream)) == (failures > GIVEN_UP)
        world.link.say(Died("it ended."))
    gaps = [later - sooner for sooner, later in pairwise(starts)]
    assert gaps == [max(0.25 * bool(gap), pause(failures)) for failures, gap in enumerate(gaps, 1)]
    assert pause(AT_ONCE) in gaps
    world.wait(pause(100))
    world.link.say(READY)
    assert world.state is State.READY
    world.run(99)
    assert world.told() == [99]


@pytest.mark.fault("C10")
def test_crashes_that_come_long_after_readiness_are_spread_out_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    world = ready()
    pauses = []
    for crash in range(1, OFTEN + 4):
        world.wait(120.0)
        world.link.say(Died("the engine ended by SIGSEGV."))
        before, starts = world.now, world.link.starts
        while world.link.starts == starts:
            assert world.state is State.LOADING
            world.wait(0.25)
        pauses.append(world.now - before)
        world.link.say(READY)
        assert (world.state, world.incidents.crashed) == (State.READY, crash)
    assert pauses[OFTEN - 1 :] == [0.5, 1.0, 2.0, 4.0]
    assert caplog.messages[-1].endswith("It is started again in 4 s, for it has ended 7 times in 30 minutes.")


@pytest.mark.fault("D12")
def test_a_process_that_cannot_be_had_is_tried_on_with_pauses_and_is_not_ready_meanwhile() -> None:
    world = ready()
    world.link.say(Died("the engine ended."))
    world.wait(0)
    for starts in range(2, 8):
        assert world.link.starts == starts
        world.link.say(Died("the engine's process cannot be started: Cannot allocate memory.", started=False))
        assert world.state in (State.LOADING, State.DEAD)
        world.wait(30.0)
    world.link.say(READY)
    assert (world.state, world.incidents) == (State.READY, Incidents(crashed=1, unstarted=6))


def test_a_model_whose_file_has_changed_is_not_taken_for_the_one_that_clients_know() -> None:
    world = ready()
    world.link.say(Died("it ended."))
    world.wait(0)
    world.link.say(Ready(model="toy", context=100, vocab=257, max_logprobs=5, max_sequences=8, fingerprint="another"))
    assert (world.link.kills, world.state) == (1, State.LOADING)


# ---- the end


def test_when_it_is_closed_everything_ends_no_timer_is_left_and_nothing_is_heard() -> None:
    world = ready()
    stream = world.run(1)
    asyncio.run(world.made.close())
    assert all_of(stream)[-1].finish is Finish.ABORT
    assert world.link.closed
    assert all(timer.cancelled for timer in world.timers)
    for message in (READY, Died("it ended."), Progress(0.1)):
        world.link.say(message)
    assert world.state is State.CLOSED
    assert all_of(world.run(2))[-1].finish is Finish.ABORT
    assert not any(isinstance(message, Abort) for message in world.link.sent)


def test_counts_never_go_back_and_what_is_there_now_dies_with_the_worker() -> None:
    world = ready()
    world.run(1)
    world.step(1, TokenRow(0, 97), steps=3)
    before = world.made.health(draining=False)
    assert (before.counts.steps, before.counts.tokens, before.running, before.pages.total) == (3, 24, 1, 4)
    world.link.say(Died("it ended."))
    dead = world.made.health(draining=True)
    assert (dead.counts, dead.running, dead.pages, dead.state) == (before.counts, 0, Pages(), State.DRAINING)
    world.wait(0)
    world.link.say(READY)
    world.run(2)
    world.step(2, TokenRow(0, 97), steps=2)
    after = world.made.health(draining=False)
    assert (after.counts.steps, after.counts.tokens, sum(after.batches)) == (5, 40, 5)
