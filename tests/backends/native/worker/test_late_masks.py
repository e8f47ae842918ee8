"""Sequences that sit out while their masks are late: whichever, whenever, for however long, each draws what it draws alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.backends.native.schedule.harness import Oracle, prepared
from tests.backends.native.worker.harness import NATIVE, Simulation, assert_as_alone

from quintet.backends.native.schedule import sequence
from quintet.backends.native.schedule.plan import Kind, Segment
from quintet.backends.native.worker.masks import Masked

TEXT = b"It was the best of times, it was the worst of times, it was the age of wisdom"


class Late:
    """In the place of ``Masks``: all ones, and for a part of the sequences in some steps.

    Args:
        share: of the segments that are late.
    """

    def __init__(self, rng: random.Random, vocab: int, share: float) -> None:
        self._rng, self._words, self._share = rng, -(-vocab // 32), share
        self.sitting: set[sequence.Sequence] = set()
        self.kinds: set[Kind] = set()

    def begin(self, drawing: Sequence[Segment]) -> Callable[[], Masked]:
        assert not any(segment.seq.late for segment in drawing), "it has no mask yet"
        late = frozenset(segment for segment in drawing if self._rng.random() < self._share)
        self.sitting |= {segment.seq for segment in late}
        self.kinds |= {segment.kind for segment in late}
        rows = sum(segment.draws for segment in drawing)
        return lambda: Masked(np.full((rows, self._words), 0xFFFFFFFF, np.uint32), [], late)

    def wake(self, *, all_of_them: bool) -> None:
        for seq in sorted(self.sitting, key=lambda seq: (seq.request_id, seq.index)):
            if all_of_them or self._rng.random() < 0.5:
                seq.late = False
                self.sitting.remove(seq)


class Waiting(Simulation):
    """Between two steps some masks come; where everybody waits, all of them."""

    def __init__(self, rng: random.Random, share: float, **options: Any) -> None:
        super().__init__(**options)
        self.late = Late(rng, self.runner.vocab, share)
        self.stepper._masks = self.late  # type: ignore[assignment]

    def step(self, *aborts: tuple[int, int | None]) -> None:
        self.late.wake(all_of_them=False)
        if all(seq.late for seq in self.scheduler._queues.running):
            self.late.wake(all_of_them=True)
        super().step(*aborts)


@pytest.mark.fault("B10")
@pytest.mark.parametrize("seed", range(40))
def test_whoever_sits_out_draws_what_it_draws_alone(seed: int) -> None:
    """Decodes, drafts, ends of prompts and forks, echoed or not, with pages for a few, so that those who sit are preempted too; aborts."""
    rng = random.Random(seed)
    made = {}
    for request in range(8):
        prompt = TEXT[rng.randrange(40) :][: rng.randrange(1, 40)]
        echo = rng.random() < 0.4
        for index in range(rng.randrange(1, 5)):
            controls = {"temperature": 1.0, "seed": index, "logprobs": 2 if echo else None, "echo": echo}
            made[request, index] = prepared(prompt, rng.randrange(1, 30), **controls)  # type: ignore[arg-type]
    drafts = Oracle(made, [3, 0, 2], [2, 1, 3], NATIVE)
    options = {"pages": rng.randrange(16, 60), "batch_tokens": rng.choice((16, 64)), "max_running": rng.randrange(3, 12)}
    simulation = Waiting(rng, rng.choice((0.1, 0.5)), speculation=drafts, **options)
    for request in range(8):
        simulation.add(request, *[one for (of, _), one in made.items() if of == request], tenant=rng.choice("ab"))
        for _ in range(rng.randrange(3)):
            simulation.step(*([(rng.randrange(8), 0)] if rng.random() < 0.2 else []))
    simulation.finish()
    for at, one in made.items():
        assert_as_alone(simulation.events[at], one)
    assert simulation.late.kinds, "else this shows nothing"
