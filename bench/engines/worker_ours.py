"""Our whole model through ``quintet.backends.native.core.runner``, without scheduler or HTTP: ``worker_ours KV_TYPE LIMITS PLAN MODEL``.

``LIMITS`` is the program that measures the machine's, or empty.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from tests.support.loading import native_loader

from bench.common.plan import Plan, Stage, emit, measure
from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.native.core.types import I32, Batch, Runner
from quintet.config import KvType
from quintet.request import Sampling


def int32(values: Sequence[int]) -> I32:
    return np.array(values, dtype=np.int32)


class Ours:
    """A runner with pages for the largest stage; of each stage every sequence owns its pages."""

    def __init__(self, runner: Runner, cpu: Cpu, plan: Plan) -> None:
        self._runner = runner
        runner.allocate(max(stage.slots * pages(stage) for stage in plan.stages))
        greedy, self._choose = Sampling(0.0, 1.0, 0), NativeSamplers(cpu, [b""] * runner.vocab, ())
        self._samplers = [self._choose.make(greedy, (), ()) for _ in range(max(stage.slots for stage in plan.stages))]

    def open(self, stage: Stage) -> None:
        shape = stage.slots, pages(stage)
        self._tables: I32 = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)

    def _forward(self, first: int, start: int, tokens: Sequence[Sequence[int]]) -> list[int]:
        """One pass over a segment of each sequence from ``first`` on, at position ``start``; the greedy next token of each."""
        n = len(tokens)
        lengths = int32([len(segment) for segment in tokens])
        ids = int32([token for segment in tokens for token in segment])
        rows = np.cumsum(lengths, dtype=np.int32) - np.int32(1)
        batch = Batch(ids, lengths, int32([start] * n), self._tables[first : first + n], rows)
        logits = self._runner.logits(self._runner.forward(batch))
        return [int(token) for token in self._choose.draw(logits, self._samplers[:n], np.zeros(n, np.uint64)).tokens]

    def prefill(self, tokens: Sequence[int]) -> float:
        begin = time.perf_counter()
        self._forward(0, 0, [tokens])
        return len(tokens) / (time.perf_counter() - begin)

    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        length = len(prompts[0])
        last = [self._forward(i, 0, [tokens])[0] for i, tokens in enumerate(prompts)]
        begin = time.perf_counter()
        for step in range(steps):
            last = self._forward(0, length + step, [[token] for token in last])
        return len(prompts) * steps / (time.perf_counter() - begin)


def pages(stage: Stage) -> int:
    """Pages of one of its sequences."""
    return -(-stage.sequence // PAGE)


def main() -> None:
    kv_type, (limits, settings, model) = cast("KvType", sys.argv[1]), sys.argv[2:]

    def look() -> Any:
        return json.loads(subprocess.check_output([limits, str(plan.threads)])) if limits else {}

    plan, begin = Plan.from_json(settings), time.perf_counter()
    loaded = native_loader(Path(model), threads=plan.threads, context=max(stage.sequence for stage in plan.stages), kv_type=kv_type)(
        lambda _share: None
    )
    emit("load", time.perf_counter() - begin)
    assert loaded.cpu is not None
    measure(Ours(loaded.runner, loaded.cpu, plan), plan, look)


if __name__ == "__main__":
    main()
