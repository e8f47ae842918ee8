"""OpenVINO GenAI's continuous-batching pipeline on a GGUF file; runs in its own environment: ``worker_openvino.py PLAN MODEL``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from bench.common.plan import Plan, Stage, emit, measure


class OpenVino:
    """One pipeline; requests are added by hand and stepped, so that decode steps can be timed alone."""

    def __init__(self, model: str, plan: Plan) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1  # GiB, ample for every case
        scheduler.max_num_batched_tokens = 2048  # a whole prefill in one step, the fastest setting
        scheduler.max_num_seqs = max(stage.slots for stage in plan.stages)
        scheduler.enable_prefix_caching = False
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": plan.threads})
        self._next = 0

    def open(self, stage: Stage) -> None:
        """Its cache has room for every stage."""

    def _add(self, tokens: Sequence[int], most: int) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = most, True, False
        self._next += 1
        return self._pipeline.add_request(self._next, ov.Tensor(np.array([tokens], dtype=np.int64)), config)

    def _step(self, handles: Sequence[Any]) -> int:
        """One step; the number of tokens it brought."""
        self._pipeline.step()
        return sum(len(part.generated_ids) for handle in handles if handle.can_read() for part in handle.read().values())

    def prefill(self, tokens: Sequence[int]) -> float:
        handle, begin = self._add(tokens, 1), time.perf_counter()
        while not self._step([handle]):
            pass
        return len(tokens) / (time.perf_counter() - begin)

    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        handles = [self._add(tokens, steps + 4) for tokens in prompts]
        ready = 0
        while ready < len(handles):
            ready += self._step(handles)
        begin = time.perf_counter()
        tokens = sum(self._step(handles) for _ in range(steps))
        rate = tokens / (time.perf_counter() - begin)
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return rate


def main() -> None:
    plan, begin = Plan.from_json(sys.argv[1]), time.perf_counter()
    engine = OpenVino(sys.argv[2], plan)
    emit("load", time.perf_counter() - begin)
    measure(engine, plan)


if __name__ == "__main__":
    main()
