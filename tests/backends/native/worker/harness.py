"""The scheduler's harness with the compiled core's samplers: every control is there."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Any

from tests.backends.native.schedule import harness

from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.loader import Loaded
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.native.core.types import U8, Batch, Meanwhile
from quintet.backends.native.wire.messages import FromWorker, Stepped, Submit
from quintet.backends.native.worker.worker import Heard, Worker
from quintet.backends.toy import ToyRunner, ToyTokenizer
from quintet.config import EngineConfig
from quintet.inputs.sequence import PreparedSequence, Urgency
from quintet.request import Sampling

NATIVE = NativeSamplers(Cpu(), ToyTokenizer().pieces, ToyTokenizer().eos_ids)


class Simulation(harness.Simulation):
    """An engine without its thread."""

    def __init__(self, **options: Any) -> None:
        super().__init__(samplers=NATIVE, **options)


alone = functools.partial(harness.alone, samplers=NATIVE)
assert_as_alone = functools.partial(harness.assert_as_alone, samplers=NATIVE)

CONFIG = EngineConfig(kv_bytes=1 << 22, batch_tokens=64, max_running=32, max_waiting=32, max_sequences=32, speculation=False)
ONE = PreparedSequence((104, 105), 40, Sampling(0.0, 1.0, 0, ignore_eos=True), None, echo=False)


class World:
    """A worker, turn by turn, whose steps take ``step_s``; what it tells, with the time, and how many tokens each pass computed."""

    def __init__(self, step_s: float = 0.01, config: EngineConfig = CONFIG, model: type[ToyRunner] = ToyRunner, **loaded: Any) -> None:
        self.now = 100.0
        self.told: list[tuple[float, FromWorker]] = []
        self.passes: list[int] = []
        self.inbox: SimpleQueue[Heard] = SimpleQueue()
        world = self

        class Slow(model):  # type: ignore[misc, valid-type]
            def forward(self, batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
                world.passes.append(len(batch.tokens))
                rows: U8 = super().forward(batch, meanwhile)
                world.now += step_s
                return rows

        self.runner = Slow()
        worker = Worker(
            lambda _: Loaded(self.runner, ToyTokenizer(), name="toy", fingerprint="fp", **loaded),
            config,
            lambda: self.now,
            self.inbox,
            lambda message: self.told.append((self.now, message)),
        )
        self.turns = worker.turns()
        next(self.turns)

    def submit(self, request_id: int, sequences: Iterable[PreparedSequence], urgency: Urgency = Urgency.NOW) -> None:
        self.inbox.put(Submit.of(request_id, list(sequences), self.now, urgency=urgency))

    def run(self, turns: int) -> list[tuple[float, Stepped]]:
        """What is told of steps meanwhile."""
        before = len(self.told)
        for _ in range(turns):
            next(self.turns)
        return [(at, message) for at, message in self.told[before:] if isinstance(message, Stepped)]
