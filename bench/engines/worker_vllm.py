"""vLLM's engine in this process; runs in an environment of its own: ``worker_vllm.py TYPE PLAN MODEL``."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind

from bench.common.plan import Plan, emit, measure
from bench.common.stepped import BUDGET, Stepped, beginning


class Vllm(Stepped):
    """One engine."""

    def __init__(self, model: str, dtype: str, plan: Plan) -> None:
        longest = max(stage.sequence + beginning([range(stage.context)] * stage.slots) for stage in plan.stages)
        sizes = {"max_model_len": longest, "max_num_seqs": max(stage.slots for stage in plan.stages), "max_num_batched_tokens": BUDGET}
        arguments = EngineArgs(model, dtype=dtype, enable_prefix_caching=False, disable_log_stats=True, **sizes)
        self._engine = LLMEngine.from_engine_args(arguments)
        self._next = 0

    def add(self, tokens: Sequence[int], most: int) -> int:
        self._next += 1
        asked = SamplingParams(max_tokens=most, ignore_eos=True, temperature=0, detokenize=False, output_kind=RequestOutputKind.DELTA)
        self._engine.add_request(str(self._next), {"prompt_token_ids": list(tokens)}, asked)
        return self._next

    def step(self) -> Mapping[int, int]:
        return {int(output.request_id): len(output.outputs[0].token_ids) for output in self._engine.step()}

    def unfinished(self) -> bool:
        return bool(self._engine.has_unfinished_requests())


def main() -> None:
    dtype, settings, model = sys.argv[1:]
    plan, begin = Plan.from_json(settings), time.perf_counter()
    engine = Vllm(model, dtype, plan)
    emit("load", time.perf_counter() - begin)
    measure(engine, plan)


if __name__ == "__main__":
    main()
