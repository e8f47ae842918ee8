"""What the engine itself costs per sequence and step, in Python: plan, apply and delivery, without any model.

    python -m bench.parts.engine_overhead [--sequences 32] [--steps 2000] [--process]

The model and the native sampler are replaced by doubles that return at once, so all that is timed is ours. ``cpu`` is the whole
process's CPU time: worker thread, hand-over, and event loop with one reader task per request. With ``--process`` the worker is
in a process of its own, as it is in ``quintet serve``, and the CPU time is that of both; ``codec`` is encoding and decoding alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
from tests.support.preparing import prepare

from quintet.backends.base import Counts, Pages, State
from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.loader import Loaded
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.native.core.types import F32, I32, U8, Batch, Meanwhile, Scores
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.process import ProcessLink
from quintet.backends.native.schedule.emit import Emitter
from quintet.backends.native.schedule.kv import KvCache
from quintet.backends.native.schedule.pages import BlockTables, PagePool
from quintet.backends.native.schedule.scheduler import Scheduler
from quintet.backends.native.wire import codec
from quintet.backends.native.wire.messages import EventRow, Events, Stepped, TokenRow
from quintet.backends.native.wire.sources import ModelSource
from quintet.backends.native.worker.step import Stepper
from quintet.backends.toy import ToyTokenizer
from quintet.config import EngineConfig
from quintet.events import TokenEvent
from quintet.inputs.sequence import PreparedSequence, SequenceSpec
from quintet.request import Sampling

VOCAB, CONTEXT, ROW = 257, 8192, 16


class NoModel:
    """A runner that computes nothing: every hidden row and every logit is 0."""

    vocab, context, window, page_bytes, row_bytes = VOCAB, CONTEXT, 0, 64, ROW

    def __init__(self) -> None:
        self._rows = np.zeros((4096, ROW), np.uint8)
        self._logits = np.zeros((4096, VOCAB), np.float32)

    def allocate(self, pages: int) -> None:
        """Nothing to hold."""

    def forward(self, batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
        if meanwhile:
            meanwhile()
        return self._rows[: len(batch.rows)]

    def logits(self, rows: U8) -> F32:
        return self._logits[: len(rows)]

    def logits_of(self, rows: U8, tokens: I32) -> F32:  # noqa: ARG002 - the protocol's
        """Nothing is scored."""
        return np.zeros(len(tokens), np.float32)

    def copy_page(self, source: int, target: int) -> None:
        """Nothing to copy."""

    def read_page(self, page: int) -> U8:  # noqa: ARG002 - the protocol's
        """Nothing is kept."""
        return np.zeros(0, np.uint8)

    def write_page(self, page: int, data: U8) -> None:
        """Nothing was kept."""

    def touch_pages(self, first: int, last: int) -> None:
        """It has no memory."""

    def drop_pages(self, pages: Sequence[int]) -> None:
        """Nothing to drop."""


def no_draw(_: NativeSamplers, logits: F32, *_more: object) -> I32:
    return np.zeros(len(logits), np.int32)


def no_score(_: NativeSamplers, _logits: F32, targets: I32, k: int) -> Scores:
    rows = len(targets)
    return Scores(np.zeros(rows, np.float32), np.zeros((rows, k), np.int32), np.zeros((rows, k), np.float32), np.zeros(rows))


def prompt(index: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(index).integers(0, 256, 100).tolist())


def spec(index: int, steps: int, logprobs: int | None) -> SequenceSpec:
    return SequenceSpec(prompt(index), steps, Sampling(0.0, 1.0, index), logprobs, False)


def parts(sequences: int, steps: int, logprobs: int | None) -> dict[str, float]:
    """CPU microseconds per sequence and step of each part, called directly."""
    config = EngineConfig(max_running=sequences)
    runner, tables = NoModel(), BlockTables(sequences, CONTEXT // 16)
    scheduler = Scheduler(config, KvCache(PagePool(1 << 16), tables, ROW), Emitter(frozenset({256})))
    for index in range(sequences):
        scheduler.add(index, [PreparedSequence(prompt(index), steps, Sampling(0.0, 1.0, index), logprobs, False)], 0.0)
    stepper = Stepper(runner, tables, NativeSamplers(Cpu(), [b""] * VOCAB, ()))
    spent = dict.fromkeys(("plan", "step", "apply"), 0.0)
    count = 0
    while scheduler.live:
        t0 = time.thread_time()
        plan = scheduler.plan(0.0)
        t1 = time.thread_time()
        stepper.copy(plan.copies)
        results = stepper.run(plan)
        t2 = time.thread_time()
        scheduler.apply(plan, results)
        t3 = time.thread_time()
        if len(results.tokens) == sequences == plan.tokens:
            count += 1
            for name, value in zip(spent, (t1 - t0, t2 - t1, t3 - t2), strict=True):
                spent[name] += value
    return {name: value / count / sequences * 1e6 for name, value in spent.items()}


CHILD = """
from bench.parts.engine_overhead import Loaded, NoModel, no_model
from quintet.backends.native.worker import child
no_model()
child.main(lambda source, table: lambda progress: Loaded(NoModel(), table(), "none", "fp"))
"""


def link(config: EngineConfig) -> ProcessLink:
    """To a worker without a model in a process of its own."""
    return ProcessLink(ModelSource(path="", threads=1, context=None, name="none"), ToyTokenizer, config, ("-c", CHILD))


def cpu(pid: int | None) -> float:
    """CPU seconds of this process and another."""
    if pid is None:
        return time.process_time()
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def crossing(sequences: int, logprobs: int | None, repeats: int = 300) -> float:
    """CPU microseconds per event to encode and decode a step of so many."""
    top = ((1, -0.5),) * (logprobs or 0)
    batch: Events = {index: [TokenRow(0, index) if logprobs is None else EventRow(0, index, -0.5, top)] for index in range(sequences)}
    pieces = ToyTokenizer().pieces
    begin = time.thread_time()
    for _ in range(repeats):
        data = codec.encode(Stepped(sequences, 0, Counts(1, sequences), Pages(1000, 16, 100, 100), batch))
        for frame in codec.Splitter().feed(bytes(data)):
            message = codec.decode_from_worker(frame)
            assert isinstance(message, Stepped)
            _ = [row.event(pieces) for rows in message.events.values() for row in rows]
    return (time.thread_time() - begin) / repeats / sequences * 1e6


async def whole(sequences: int, steps: int, logprobs: int | None, process: bool) -> float:
    """CPU microseconds per sequence and step of the whole engine, one reader per request."""
    config = EngineConfig(max_running=sequences, kv_bytes=1 << 22)
    away = link(config) if process else None
    engine = Engine(away or (lambda _: Loaded(NoModel(), ToyTokenizer(), name="none", fingerprint="fp")), config)
    while engine.health().state is State.LOADING:
        await asyncio.sleep(0.001)
    work = [await prepare(engine, [spec(index, steps, logprobs)]) for index in range(sequences)]
    pid = away.pid if away else None
    begin = cpu(pid)
    await asyncio.gather(*(_drain(engine.submit(prepared)) for prepared in work))
    spent = cpu(pid) - begin
    await engine.close()
    return spent / steps / sequences * 1e6


async def _drain(stream: AsyncIterator[Sequence[TokenEvent]]) -> None:
    async for _ in stream:
        pass


def no_model() -> None:
    """Put the doubles in place."""
    for name, double in (("draw", no_draw), ("score", no_score)):
        setattr(NativeSamplers, name, double)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--process", action="store_true")
    args = parser.parse_args()
    no_model()
    for logprobs in (None, 0, 5):
        each = parts(args.sequences, args.steps, logprobs)
        total = asyncio.run(whole(args.sequences, args.steps, logprobs, args.process))
        if args.process:
            each["codec"] = crossing(args.sequences, logprobs)
        names = ", ".join(f"{name} {value:.2f}" for name, value in each.items())
        print(f"logprobs={logprobs}: {names}; whole engine, cpu {total:.2f} (us per sequence and step, {args.sequences} sequences)")


if __name__ == "__main__":
    main()
