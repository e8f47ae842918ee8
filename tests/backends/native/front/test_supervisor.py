"""A worker's lives: what its supervisor does at each of its messages, and when none comes. No event loop, no thread, no waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from quintet.backends.base import Counts, Pages, State
from quintet.backends.native.front.in_flight import INTERRUPTED, InFlight
from quintet.backends.native.front.link import Link
from quintet.backends.native.front.restarts import AT_ONCE, GIVEN_UP, pause
from quintet.backends.native.front.stream import Stream
from quintet.backends.native.front.supervisor import DIED, Supervisor
from quintet.backends.native.front.watchdog import LOAD_STALL_S, SLOW_STEPS, STALL_S
from quintet.backends.native.wire.messages import (
    Abort,
    Died,
    EventRow,
    FromWorker,
    Progress,
    Ready,
    Started,
    Stepped,
    Submit,
    TokenRow,
    ToWorker,
)
from quintet.backends.toy import ToyTokenizer
from quintet.errors import EngineFailed, ModelError
from quintet.events import Finish, TokenEvent
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Sampling

READY = Ready("toy", 100, 257, 5, 8, "fp")


class FakeLink(Link):
    """Notes what it is told, and says what the test says."""

    def __init__(self, *, restarts: bool) -> None:
        self.restarts = restarts
        self.tokenizer = ToyTokenizer()
        self.starts = self.kills = 0
        self.sent: list[ToWorker] = []
        self.closed = False
        self.say: Callable[[FromWorker], None] = lambda _: None

    def start(self, receive: Callable[[FromWorker], None]) -> None:
        self.starts += 1
        self.say = receive

    def send(self, message: ToWorker) -> None:
        self.sent.append(message)

    def kill(self) -> None:
        self.kills += 1
        self.say(Died("the engine was killed."))

    async def close(self) -> None:
        self.closed = True


class FakeTimer:
    """Something that is called at a time."""

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call, self.cancelled = at, call, False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """A supervisor, its link, and time that passes when told."""

    def __init__(self, *, restarts: bool = True) -> None:
        self.now = 100.0
        self.timers: list[FakeTimer] = []
        self.link = FakeLink(restarts=restarts)
        clock = lambda: self.now  # noqa: E731
        work = InFlight(self.link.send, clock, lambda submit: bytes(submit.prompts[0]))
        self.made = Supervisor(self.link, work, clock, self._later)

    def _later(self, seconds: float, call: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(self.now + seconds, call))
        return self.timers[-1]

    def wait(self, seconds: float) -> None:
        """Time passes, and what is due happens when it is."""
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer.at <= end and not timer.cancelled]:
            first = min(due, key=lambda timer: timer.at)
            self.timers.remove(first)
            self.now = max(self.now, first.at)
            first.call()
        self.now = end

    def run(self, request_id: int) -> Stream:
        sequence = PreparedSequence((request_id,), 5, Sampling(0.0, 1.0, 0), None, echo=False)
        stream = Stream(1)
        self.made.run(Submit.of(request_id, (sequence,), self.now), stream)
        return stream

    def step(self, request_id: int, row: TokenRow | EventRow, steps: int = 1) -> None:
        self.link.say(Stepped(1, 0, Counts(steps, 8 * steps), Pages(4, 16, 1), {request_id: [row]}))

    def told(self) -> list[int]:
        """Numbers of the requests that the link was told of since the last time."""
        told = [message.request_id for message in self.link.sent if isinstance(message, Submit)]
        self.link.sent.clear()
        return told

    @property
    def state(self) -> State:
        return self.made.health(draining=False).state


def all_of(stream: Stream) -> list[TokenEvent]:
    return [event for batch in stream._batches for event in batch]


def ready(*, restarts: bool = True) -> World:
    world = World(restarts=restarts)
    world.link.say(READY)
    return world


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
    world.step(1, EventRow(0, ord("b"), finish=Finish.LENGTH), 2)
    assert [(event.piece, event.finish) for event in all_of(stream)] == [(b"a", None), (b"b", Finish.LENGTH)]


# ---- deaths


def test_a_worker_that_died_is_started_again_at_once_and_what_nobody_saw_a_part_of_is_run_again() -> None:
    world = ready()
    seen, unseen = world.run(1), world.run(2)
    world.link.say(Started((1, 2)))
    world.step(1, TokenRow(0, 97))
    world.told()
    world.link.say(Died("it ended."))
    assert (all_of(seen)[-1].finish, all_of(seen)[-1].error) == (Finish.ERROR, INTERRUPTED)
    assert (world.state, all_of(unseen)) == (State.LOADING, [])
    world.wait(0)
    assert world.link.starts == 2
    world.link.say(READY)
    assert (world.state, world.told()) == (State.READY, [2])


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


def test_a_model_whose_file_has_changed_is_not_taken_for_the_one_that_clients_know() -> None:
    world = ready()
    world.link.say(Died("it ended."))
    world.wait(0)
    world.link.say(Ready("toy", 100, 257, 5, 8, "another"))
    assert (world.link.kills, world.state) == (1, State.LOADING)


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


def test_a_step_now_and_then_is_progress() -> None:
    world = ready()
    world.run(1)
    for steps in range(1, 20):
        world.wait(STALL_S - 1)
        world.step(1, TokenRow(0, 97), steps)
    assert world.link.kills == 0


@pytest.mark.fault("D10")
def test_a_worker_whose_steps_take_long_is_given_longer_from_the_start_or_as_they_are_seen() -> None:
    told, seen = World(), ready()
    told.link.say(Ready("toy", 100, 257, 5, 8, "fp", step_s=STALL_S))
    seen.run(1)
    seen.wait(STALL_S - 1)
    seen.step(1, TokenRow(0, 97))
    for world, step_s in ((told, STALL_S), (seen, STALL_S - 1)):
        world.run(2)
        world.wait(SLOW_STEPS * step_s)
        assert (world.state, world.link.kills) == (State.READY, 0)
        world.wait(SLOW_STEPS)
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
    world.step(1, TokenRow(0, 97), 3)
    before = world.made.health(draining=False)
    assert (before.counts.steps, before.counts.tokens, before.running, before.pages.total) == (3, 24, 1, 4)
    world.link.say(Died("it ended."))
    dead = world.made.health(draining=True)
    assert (dead.counts, dead.running, dead.pages, dead.state) == (before.counts, 0, Pages(), State.DRAINING)
    world.wait(0)
    world.link.say(READY)
    world.run(2)
    world.step(2, TokenRow(0, 97), 2)
    after = world.made.health(draining=False)
    assert (after.counts.steps, after.counts.tokens, sum(after.batches)) == (5, 40, 2)
