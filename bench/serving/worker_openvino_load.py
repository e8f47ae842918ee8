"""Loads on OpenVINO GenAI's continuous batching, in this process; runs in its own environment:
``python -m bench.serving.worker_openvino_load PLAN MODEL``.

For each line of stdin, ``[LOAD, TRACES]``, it plays the load in one file, writes its traces into the other, and says so. What a server
would do over HTTP is done by hand: requests are added when they are due, steps are made while there is work, tokens are stamped when a
step brought them.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from bench.common.plan import MARK, Plan
from bench.common.stepped import BUDGET
from quintet.load.client import Trace
from quintet.load.figures import to_json
from quintet.load.play import Body, Load


def settings(body: Body) -> Any:
    """The generation settings that an OpenAI-style body asks for."""
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos = body["max_tokens"], bool(body.get("ignore_eos"))
    config.do_sample = body.get("temperature") != 0
    config.num_return_sequences, config.rng_seed = body.get("n", 1), body.get("seed", 0)
    config.echo, config.logprobs = bool(body.get("echo")), body.get("logprobs", 0)
    return config


@dataclass
class Running:
    """A request in the pipeline."""

    handle: Any
    trace: Trace
    client: bool
    logprobs: list[float] = field(default_factory=list)

    def read(self, now: float) -> bool:
        """Take what the last step brought; whether the request is over."""
        while self.handle.can_read():
            for part in self.handle.read().values():
                self.trace.times.append(now)
                self.trace.tokens += len(part.generated_ids)
                self.logprobs += part.generated_log_probs
        over = bool(self.handle.get_status() != genai.GenerationStatus.RUNNING)
        if over:
            self.trace.end = now
            scores = {"token_logprobs": [None, *self.logprobs[1:]]}  # its first entry, of a token that nothing precedes, says 1.0
            self.trace.body = json.dumps({"choices": [{"logprobs": scores}]}).encode()
        return over


class Player:
    """Plays one load after another on a pipeline."""

    def __init__(self, model: str, plan: Plan) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2  # GiB, ample for every case
        scheduler.max_num_batched_tokens = BUDGET
        scheduler.max_num_seqs = max(plan.clients)
        scheduler.enable_prefix_caching = plan.cache
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": plan.threads})
        self._next = 0

    def _add(self, body: Body, trace: Trace, *, client: bool) -> Running:
        self._next += 1
        tokens = ov.Tensor(np.array([body["prompt"]], dtype=np.int64))
        return Running(self._pipeline.add_request(self._next, tokens, settings(body)), trace, client)

    def play(self, load: Load) -> list[Trace]:
        """Traces in the order of the jobs."""
        begin = time.perf_counter()
        traces = [Trace(begin + (job.at or 0.0), status=200) for job in load.jobs]
        waiting = deque(index for index, job in enumerate(load.jobs) if job.at is None)
        timed = deque(sorted((job.at, index) for index, job in enumerate(load.jobs) if job.at is not None))
        running: list[Running] = []
        while waiting or timed or running:
            now = time.perf_counter()
            while timed and begin + timed[0][0] <= now:
                index = timed.popleft()[1]
                running.append(self._add(load.jobs[index].body, traces[index], client=False))
            while waiting and sum(one.client for one in running) < load.clients:
                index = waiting.popleft()
                traces[index].due = time.perf_counter()
                running.append(self._add(load.jobs[index].body, traces[index], client=True))
            if not running:
                time.sleep(max(begin + timed[0][0] - now, 0.0))
                continue
            self._pipeline.step()
            now = time.perf_counter()
            running = [one for one in running if not one.read(now)]
        return traces


def main() -> None:
    player = Player(sys.argv[2], Plan.from_json(sys.argv[1]))
    print(MARK + "ready", flush=True)
    for line in sys.stdin:
        jobs, traces = map(Path, json.loads(line))
        load = Load.from_json(json.loads(jobs.read_text()))
        traces.write_text(json.dumps(to_json(player.play(load))))
        print(MARK + "done", flush=True)


if __name__ == "__main__":
    main()
