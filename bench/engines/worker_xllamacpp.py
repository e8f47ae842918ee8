"""llama.cpp from the ``xllamacpp`` wheel; runs in its own environment.

``python -m bench.engines.worker_xllamacpp PLAN MODEL`` measures its server object in this process, without HTTP;
``python -m bench.engines.worker_xllamacpp PLAN MODEL PORT`` serves HTTP until it is ended.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import xllamacpp

from bench.common.plan import Plan, Stage, emit, measure
from bench.common.stepped import beginning
from quintet.load.client import Trace
from quintet.load.figures import steady_rate


def start(model: str, plan: Plan, slots: int, sequence: int, port: int) -> Any:
    """A loaded server with ``slots`` sequences of so many tokens; it listens on ``port``."""
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_parallel = slots
    params.n_ctx = slots * sequence
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = plan.threads
    params.cache_prompt = plan.cache
    params.port = port
    return xllamacpp.Server(params)


class XLlamaCpp:
    """The server object, called directly from one thread per sequence."""

    def __init__(self, model: str, plan: Plan) -> None:
        self._model, self._plan = model, plan
        self._server: Any = None

    def open(self, stage: Stage) -> None:
        self._server = None  # one model in memory at a time
        begin = time.perf_counter()
        self._server = start(self._model, self._plan, stage.slots, stage.sequence, 0)
        if stage.plain:
            emit("load", time.perf_counter() - begin)

    @staticmethod
    def _body(tokens: Sequence[int], most: int, *, stream: bool) -> dict[str, object]:
        return {"prompt": list(tokens), "max_tokens": most, "temperature": 0, "ignore_eos": True, "stream": stream}

    def prefill(self, tokens: Sequence[int]) -> float:
        """By the engine's own clock, which leaves the call's overhead out."""
        answer = self._server.handle_completions(self._body(tokens, 1, stream=False))
        return float(answer["timings"]["prompt_per_second"])

    def _stream(self, tokens: Sequence[int], most: int, trace: Trace) -> None:
        def received(piece: str) -> None:
            trace.event(piece.encode(), time.perf_counter())

        self._server.handle_completions(json.dumps(self._body(tokens, most, stream=True)), received)

    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        traces = [Trace(time.perf_counter()) for _ in prompts]
        most = steps + beginning(prompts)
        threads = [threading.Thread(target=self._stream, args=(tokens, most, trace)) for tokens, trace in zip(prompts, traces, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return steady_rate(traces)


def main() -> None:
    plan, model = Plan.from_json(sys.argv[1]), sys.argv[2]
    if len(sys.argv) > 3:
        serving = start(model, plan, max(plan.clients), plan.sequence, int(sys.argv[3]))
        threading.Event().wait()
        del serving  # it serves as long as it is held
    measure(XLlamaCpp(model, plan), plan)


if __name__ == "__main__":
    main()
