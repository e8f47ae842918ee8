"""OpenVINO GenAI's continuous batching of a GGUF file, in its own environment: ``worker_openvino [PROPERTY=VALUE ...] PLAN MODEL``."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from bench.common.plan import Plan, emit, measure
from bench.common.stepped import BUDGET, Stepped


class OpenVino(Stepped):
    """One pipeline, on the CPU with these properties."""

    def __init__(self, model: str, plan: Plan, properties: Mapping[str, str]) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1  # GiB, ample for every case
        scheduler.max_num_batched_tokens = BUDGET
        scheduler.max_num_seqs = max(stage.slots for stage in plan.stages)
        scheduler.enable_prefix_caching = False
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": plan.threads, **properties})
        self._handles: dict[int, Any] = {}
        self._next = 0

    def add(self, tokens: Sequence[int], most: int) -> int:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = most, True, False
        self._next += 1
        self._handles[self._next] = self._pipeline.add_request(self._next, ov.Tensor(np.array([tokens], dtype=np.int64)), config)
        return self._next

    def step(self) -> Mapping[int, int]:
        self._pipeline.step()
        ready = {request: handle for request, handle in self._handles.items() if handle.can_read()}
        brought = {request: sum(len(part.generated_ids) for part in handle.read().values()) for request, handle in ready.items()}
        for request in ready:
            if self._handles[request].get_status() != genai.GenerationStatus.RUNNING:
                del self._handles[request]
        return brought

    def unfinished(self) -> bool:
        return bool(self._pipeline.has_non_finished_requests())


def main() -> None:
    *settings, plan_json, model = sys.argv[1:]
    plan, begin = Plan.from_json(plan_json), time.perf_counter()
    engine = OpenVino(model, plan, dict(setting.split("=") for setting in settings))
    emit("load", time.perf_counter() - begin)
    measure(engine, plan)


if __name__ == "__main__":
    main()
