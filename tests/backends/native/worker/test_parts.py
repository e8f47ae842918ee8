"""A step that one request breaks: it ends, and of all others nobody can tell that it was there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from tests.backends.native.schedule.harness import Oracle, prepared
from tests.backends.native.worker.harness import NATIVE, Simulation, assert_as_alone

from quintet.backends.native.core.types import F32, I32, U8, U64, Batch, Drawn, Meanwhile, Outcome, Sampler
from quintet.backends.native.schedule.emit import FAILED
from quintet.backends.native.worker.parts import run
from quintet.backends.toy import ToyRunner
from quintet.events import Finish
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Sampling

TEXT = b"It was the best of times, it was the worst of times, it was the age of wisdom"
GUILTY = 3
REMEMBER: list[dict[str, float]] = [{}, {"presence_penalty": 0.5}, {"mirostat_target": 3.0, "mirostat_lr": 0.5}]


class Parts(Simulation):
    """Steps as the worker runs them."""

    failed = 0

    def step(self, *_: Any) -> None:
        self.now += 1.0
        plan = self.last_plan = self.scheduler.plan(self.now)
        self.check_plan(plan)
        self.stepper.copy(plan.copies)
        self._take(run(plan, self.scheduler, self.stepper))
        self.scheduler.check()


class AllergicRunner(ToyRunner):
    """Computes all of a batch, and then breaks if there was a Z in it."""

    def forward(self, batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
        hidden = super().forward(batch, meanwhile)
        if (batch.tokens == ord("Z")).any():
            raise ValueError("Z")
        return hidden


@dataclass(frozen=True)
class Seeded:
    """A sampler that tells its seed."""

    inner: Sampler
    seed: int

    @property
    def accepted(self) -> int:
        return self.inner.accepted

    def accept(self, token: int) -> None:
        self.inner.accept(token)

    def copy(self) -> Seeded:
        return Seeded(self.inner.copy(), self.seed)

    def fork(self, seed: int) -> Seeded:
        return Seeded(self.inner.fork(seed), seed)


class AllergicSamplers:
    """Draw for everybody, and then break if a sampler with seed 666 was among them; or cannot make one."""

    def __init__(self, *, makes: bool) -> None:
        self._makes = makes

    def make(self, sampling: Sampling, bad_words: Sequence[Sequence[int]], prompt: Sequence[int]) -> Sampler:
        if sampling.seed == 666 and not self._makes:
            raise ValueError("666")
        return Seeded(NATIVE.make(sampling, bad_words, prompt), sampling.seed)

    def draw(self, logits: F32, samplers: Sequence[Sampler], *rest: Any, **named: Any) -> Drawn:
        ours = cast("Sequence[Seeded]", samplers)
        drawn = NATIVE.draw(logits, [sampler.inner for sampler in ours], *rest, **named)
        if any(sampler.seed == 666 for sampler in ours):
            raise RuntimeError("666")
        return drawn

    def score(self, logits: F32, targets: I32, k: int) -> Any:
        return NATIVE.score(logits, targets, k)


def requests(rng: random.Random, guilty: PreparedSequence) -> dict[int, list[PreparedSequence]]:
    """Some of several samples, some echoed and scored, some with controls that remember what was drawn; one is guilty."""
    made = {}
    for request in range(7):
        prompt = TEXT[rng.randrange(40) :][: rng.randrange(1, 40)]
        echo = rng.random() < 0.4
        controls = rng.choice(REMEMBER)
        made[request] = [
            prepared(prompt, rng.randrange(1, 30), temperature=1.0, seed=seed, logprobs=2 if echo else None, echo=echo, **controls)
            for seed in range(rng.randrange(1, 4))
        ]
    made[GUILTY] = [*made[GUILTY], guilty]
    return made


@pytest.mark.fault("C06", "C08")
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("fault", ["forward", "draw", "make"])
def test_only_the_request_that_breaks_a_step_ends_and_the_others_are_as_alone(fault: str, seed: int) -> None:
    """Few pages, so that pages are shared, copied and taken back; drafts, which samplers have accepted before the step breaks."""
    rng = random.Random(seed)
    guilty = prepared(TEXT[:9] + (b"Z" if fault == "forward" else b""), 9, temperature=1.0, seed=666)
    made = requests(rng, guilty)
    sequences = {(request, index): one for request, all_of in made.items() for index, one in enumerate(all_of)}
    innocent = {at: one for at, one in sequences.items() if one is not guilty}
    drafts = Oracle({**innocent, (GUILTY, len(made[GUILTY]) - 1): made[GUILTY][0]}, [3, 0, 2], [2, 1, 3], NATIVE)
    simulation = Parts(pages=rng.randrange(24, 60), batch_tokens=rng.choice((16, 64)), max_running=rng.randrange(4, 12), speculation=drafts)
    if fault == "forward":
        simulation.stepper._runner = simulation.runner = AllergicRunner()
        simulation.runner.allocate(simulation.pool.total)
    else:
        simulation.stepper._samplers = AllergicSamplers(makes=fault == "draw")
    for request, all_of in made.items():
        simulation.add(request, *all_of)
    simulation.finish()
    ends = {at: events[-1] for at, events in simulation.events.items()}
    for at, one in innocent.items():
        if at[0] != GUILTY:
            assert ends[at].finish in (Finish.EOS, Finish.LENGTH)
            assert_as_alone(simulation.events[at], one)
    end = ends[GUILTY, len(made[GUILTY]) - 1]
    assert (end.finish, end.error) == (Finish.ERROR, FAILED)


@pytest.mark.fault("C06")
def test_an_engine_that_can_compute_nothing_ends_all_and_loses_none(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ToyRunner):
        def forward(self, batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
            raise ValueError("secret")

    simulation = Parts()
    simulation.stepper._runner = simulation.runner = Broken()
    simulation.runner.allocate(simulation.pool.total)
    for request in range(5):
        simulation.add(request, prepared(TEXT[request:], 5), prepared(TEXT[:4], 5))
    simulation.finish()
    assert {(events[-1].finish, events[-1].error) for events in simulation.events.values()} == {(Finish.ERROR, FAILED)}


@pytest.mark.fault("C08")
def test_a_dead_end_ends_its_sequence_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token banned, at the second draw."""
    simulation = Parts()
    draw = NATIVE.draw

    def ended(logits: F32, samplers: Sequence[Sampler], positions: U64, *rest: Any) -> Drawn:
        tokens = draw(logits, samplers, positions, *rest).tokens
        return Drawn(np.where(positions == len(TEXT) + 1, np.int32(Outcome.NOTHING_LEFT), tokens))

    monkeypatch.setattr(NATIVE, "draw", ended)
    simulation.add(0, prepared(TEXT, 9))
    simulation.add(1, prepared(TEXT[:5], 9))
    simulation.finish()
    monkeypatch.undo()
    assert simulation.events[0, 0][-1].finish is Finish.ERROR and len(simulation.events[0, 0]) == 2
    assert_as_alone(simulation.events[1, 0], prepared(TEXT[:5], 9))
