"""A step that begins before the one before it is taken in: nobody can tell, whatever was expected, and whatever comes instead."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.backends.native.schedule.harness import Simulation, prepared
from tests.backends.native.schedule.test_scheduler import AnyInterleaving
from tests.backends.native.worker.harness import NATIVE, ONE, World, assert_as_alone

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.types import U8, Batch, Meanwhile, Sampler
from quintet.backends.native.schedule.overlap import Expected, Overlap
from quintet.backends.native.schedule.plan import Plan
from quintet.backends.native.schedule.sequence import Sequence as Running
from quintet.backends.native.schedule.speculation import SEQUENCES, Speculation
from quintet.backends.native.wire.messages import Abort, EventRow, Ping, Stepped
from quintet.backends.native.worker.early import EarlyPass
from quintet.backends.native.worker.parts import run
from quintet.backends.native.worker.step import Stepper
from quintet.backends.native.worker.worker import Heard
from quintet.backends.toy import EOS, ToyRunner
from quintet.events import Finish
from quintet.inputs.sequence import PreparedSequence

NO_END = ((EOS, -100.0),)
TEXT = b"It was the best of times, it was the worst of times, it was the age of wisdom"


class Early(Simulation):
    """Steps as the worker runs them where there is no draft model; nothing comes or goes before what is kept is taken in."""

    def __init__(self, **options: Any) -> None:
        self.early: EarlyPass | None = None  # ``add`` and ``abort`` ask for it
        super().__init__(**{"samplers": NATIVE} | options)
        self.early = EarlyPass(self.scheduler, self.stepper) if self.drafting is None else None
        self.begun = self.right = 0

    def add(self, *args: Any, **more: Any) -> None:
        self.settle()
        super().add(*args, **more)

    def abort(self, request: int, index: int | None = None) -> None:
        self.settle()
        super().abort(request, index)

    def settle(self) -> None:
        if self.early:
            self._take(self.early.settle())

    def plan(self) -> Plan:
        self.last_plan = self.scheduler.plan(self.now)
        self.check_plan(self.last_plan)
        return self.last_plan

    def step(self, *aborts: tuple[int, int | None]) -> None:
        if self.early is None or aborts:
            self.settle()
            if self.scheduler.live:
                super().step(*aborts)
            return
        self.now += 1.0
        if self.early.ready:
            self.begun += 1
            plan, results = self.early.go_on(self._plan_if_any, self._take)
            if results is not None:
                self.right += 1
                self._take(self.early.take(plan, results))
            elif plan.segments:
                self.run(plan)
        else:
            self.run(self.plan())
        self.scheduler.check()

    def _plan_if_any(self) -> Plan:
        return self.plan() if self.scheduler.live else Plan()

    def run(self, plan: Plan) -> None:
        assert self.early is not None
        self.stepper.copy(plan.copies)
        self._take(run(plan, self.scheduler, self.stepper, self.early.expect, self.early.take))


class Gullible(Early):
    """Whatever is drawn, the next step is begun as expected: most of them come to nothing, and some sequences have ended."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.scheduler.follows = lambda expected, tokens: True  # type: ignore[method-assign]


class AnyInterleavingEarly(AnyInterleaving):
    samplers = NATIVE
    engine = Early


class AnyInterleavingGullible(AnyInterleaving):
    samplers = NATIVE
    engine = Gullible


TestAnyInterleavingEarly = AnyInterleavingEarly.TestCase
TestAnyInterleavingGullible = AnyInterleavingGullible.TestCase
TestAnyInterleavingEarly.settings = TestAnyInterleavingGullible.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def several(count: int, tokens: int = 3 * PAGE, **controls: Any) -> list[PreparedSequence]:
    texts = [TEXT[index:] for index in range(count)]
    return [prepared(text, tokens, temperature=1.0, seed=index, logit_bias=NO_END, **controls) for index, text in enumerate(texts)]


@pytest.mark.parametrize("window", [0, PAGE + 3])
@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("count", [1, 3, SEQUENCES + 1])
def test_of_sequences_that_only_decode_each_step_but_two_begins_early(count: int, logprobs: int | None, window: int) -> None:
    simulation, sequences = Early(batch_tokens=4096, window=window), several(count, logprobs=logprobs)
    for request, one in enumerate(sequences):
        simulation.add(request, one)
    simulation.finish()
    assert simulation.begun == simulation.right == 3 * PAGE - 2, "all but the first, which takes prompts in, and the one after it"
    for request, one in enumerate(sequences):
        assert_as_alone(simulation.events[request, 0], one, window=window)
    assert simulation.pool.available == simulation.pool.total


def test_a_text_that_may_repeat_is_drafted_for_as_if_no_step_began_early() -> None:
    """A guess costs a pass where it is wrong, so none is made where a draft is to be expected."""
    one = prepared(b"abcabcabcabc", 60, temperature=0.0, logit_bias=NO_END)

    def drafts(engine: type[Simulation]) -> tuple[int, Simulation]:
        simulation = engine(samplers=NATIVE, speculation=Speculation(frozenset({EOS})))
        simulation.add(0, one)
        simulation.finish()
        assert_as_alone(simulation.events[0, 0], one)
        return simulation.scheduler.drafts.made, simulation

    made, simulation = drafts(Early)
    assert isinstance(simulation, Early)
    assert simulation.begun == simulation.right
    assert made == drafts(Simulation)[0]


def test_where_pages_are_short_none_is_taken_ahead() -> None:
    """Each has as many as it ends with, and not one more is there: nobody is preempted for a guess."""
    simulation = Early(pages=4, batch_tokens=4096)
    sequences = [prepared(TEXT[:PAGE], PAGE, logit_bias=NO_END, seed=seed) for seed in range(2)]
    for request, one in enumerate(sequences):
        simulation.add(request, one)
    simulation.finish()
    assert simulation.scheduler.preempted == 0
    for request, one in enumerate(sequences):
        assert_as_alone(simulation.events[request, 0], one)


class Fails(ToyRunner):
    """Breaks in some passes: before anything else is done, or when all is computed."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self.failed = 0

    def forward(self, batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
        kind = self._rng.random() if len(batch.tokens) > 1 else 1.0  # so nobody is ended for it
        if kind < 0.1:
            self.failed += 1
            raise ValueError("before")
        rows = super().forward(batch, meanwhile)
        if kind < 0.2:
            self.failed += 1
            raise ValueError("after")
        return rows


@pytest.mark.fault("C06")
@pytest.mark.parametrize("seed", range(10))
def test_a_step_that_was_begun_early_and_fails_is_run_again_and_nothing_is_lost(seed: int) -> None:
    simulation, sequences = Early(batch_tokens=4096), several(4, 2 * PAGE)
    fails = simulation.stepper._runner = simulation.runner = Fails(random.Random(seed))
    simulation.runner.allocate(simulation.pool.total)
    for request, one in enumerate(sequences):
        simulation.add(request, one)
    simulation.finish()
    assert fails.failed
    for request, one in enumerate(sequences):
        assert_as_alone(simulation.events[request, 0], one)


@pytest.mark.parametrize("broken", ["apply", "plan"])
def test_what_breaks_beside_a_pass_and_is_nobodys_request_is_no_step_to_be_run_again(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens may be taken in by halves then: to go on could lose one."""
    simulation = Early()
    simulation.add(0, *several(2))
    while not (simulation.early and simulation.early.ready):
        simulation.step()

    def breaks(*_: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(simulation.scheduler, broken, breaks)
    with pytest.raises(RuntimeError, match="ours"):
        simulation.step()


# -- the worker ----------------------------------------------------------------------------------------------------------------------


def rows(world: World, request_id: int) -> list[Any]:
    return [row for _, message in world.told if isinstance(message, Stepped) for row in message.events.get(request_id, ())]


def tokens(told: Sequence[Any]) -> list[int]:
    return [row.token for row in told if row.token >= 0]


def test_a_request_that_comes_while_steps_begin_early_is_in_the_next_step_and_both_are_as_alone() -> None:
    worlds = World(), World(), World()
    first, second = ONE, replace(ONE, tokens=(97, 98, 99))
    worlds[0].submit(1, [first])
    worlds[1].submit(2, [second])
    for world in worlds[:2]:
        world.run(40)
    both = worlds[2]
    both.submit(1, [first])
    both.run(10)
    both.submit(2, [second])
    both.run(1)
    assert both.passes[-1] == 1 + len(second.tokens)
    both.run(39)
    assert len(both.passes) == 50, "no pass came to nothing"
    for request, world in ((1, worlds[0]), (2, worlds[1])):
        assert len(tokens(rows(world, request))) == 40
        assert tokens(rows(both, request)) == tokens(rows(world, request))


def test_an_abort_ends_its_request_before_anything_more_of_it_is_computed() -> None:
    world = World()
    world.submit(1, [ONE])
    world.run(10)
    world.inbox.put(Abort(1, None))
    world.run(1)
    assert len(world.passes) == 10
    told = rows(world, 1)
    assert len(tokens(told)) == 10, "what was drawn is told before the end"
    assert isinstance(told[-1], EventRow)
    assert told[-1].finish is Finish.ABORT


@pytest.mark.parametrize("message", [Ping(), Abort(2, None)])
def test_a_message_that_changes_nothing_makes_nothing_untold(message: Heard) -> None:
    """Found by simulated worlds: the step after such a message begins no pass early, but the one after it does."""
    alone, world = World(), World()
    for one in (alone, world):
        one.submit(1, [ONE])
    alone.run(40)
    for turn in range(40):
        if turn % 3 == 1:
            world.inbox.put(message)
        world.run(1)
    assert tokens(rows(world, 1)) == tokens(rows(alone, 1))
    assert len(tokens(rows(world, 1))) == 40


def test_steps_and_tokens_are_counted_once() -> None:
    world = World()
    world.submit(1, [ONE, replace(ONE, tokens=(97, 98, 99))])
    world.run(40)
    _, last = world.told[-1]
    counts = last.counts if isinstance(last, Stepped) else None
    assert counts is not None
    assert (counts.steps, counts.tokens) == (len(world.passes), 2 * 40 + 5) == (40, 85)


def finish(world: World, *requests: int) -> None:
    """Run until they have ended, and not on: there it would wait for a message."""
    while not all(told and isinstance(told[-1], EventRow) and told[-1].finish for told in (rows(world, request) for request in requests)):
        world.run(1)


@pytest.mark.parametrize("drawn", [1, 2, 3, 10, PAGE - 2, PAGE - 1, PAGE])
def test_a_control_that_breaks_beside_an_early_pass_costs_nobody_else_a_token(drawn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step before is taken in by then: what it drew is told all the same."""
    alone, world, sampler = World(), World(), Stepper.sampler
    sequences = {1: ONE, 2: replace(ONE, tokens=(97, 98, 99))}
    for request, one in sequences.items():
        alone.submit(request, [one])
        world.submit(request, [one])
    finish(alone, *sequences)

    def breaks(stepper: Stepper, seq: Running) -> Sampler:
        if seq.request_id == 2 and len(seq.generated) == drawn:
            raise ValueError("a control")
        return sampler(stepper, seq)

    monkeypatch.setattr(Stepper, "sampler", breaks)
    finish(world, *sequences)
    assert tokens(rows(world, 1)) == tokens(rows(alone, 1))
    assert tokens(rows(world, 2)) == tokens(rows(alone, 2))[:drawn]
    assert rows(world, 2)[-1].finish is Finish.ERROR


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("of", "name"),
    [(Stepper, "after"), (Stepper, "see"), (Stepper, "finish"), (Overlap, "expect"), (Overlap, "expect_after"), (Expected, "came_true")],
)
def test_what_fails_about_an_early_pass_once_costs_nobody_a_token(
    of: type, name: str, after: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No memory for an array, say: whatever was looked at and taken in by then, no token is lost, told twice, or another one."""
    sequences, real = {1: ONE, 2: replace(ONE, tokens=(97, 98, 99))}, getattr(of, name)
    alone = World()
    for request, one in sequences.items():
        alone.submit(request, [one])
    finish(alone, *sequences)
    for failing in range(0, 39, 3):
        world, calls = World(), itertools.count()

        def fails(*args: Any, failing: int = failing, calls: Iterator[int] = calls, **more: Any) -> Any:
            if (broken := next(calls) == failing) and not after:
                raise MemoryError
            made = real(*args, **more)
            if broken:
                raise MemoryError
            return made

        for request, one in sequences.items():
            world.submit(request, [one])
        with monkeypatch.context() as broken:
            broken.setattr(of, name, fails)
            finish(world, *sequences)
        for request in sequences:
            assert tokens(rows(world, request)) == tokens(rows(alone, request)), failing
    assert any(record.exc_info for record in caplog.records), "and what it was is in the log"


def test_a_look_ahead_that_fails_costs_the_early_pass_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Stepper, "after", fails)
    world = World()
    world.submit(1, [ONE])
    finish(world, 1)
    assert len(tokens(rows(world, 1))) == len(world.passes) == 40
