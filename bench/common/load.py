"""Load on an OpenAI-style ``/v1/completions``: clients that wait for their answers (closed loop), arrivals at a rate (open loop), or both.

It runs in a process of its own, so that it and the server compete for no interpreter. Prints its ``summary`` as one JSON object.

    python -m bench.common.load --url http://127.0.0.1:8000/v1/completions --clients 8 --prompt-tokens 64 --max-tokens 128
    python -m bench.common.load --url http://127.0.0.1:8000/v1/completions --rate 20 --requests 400
    python -m bench.common.load --url http://127.0.0.1:8000/v1/completions --jobs load.json --traces traces.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

from bench.common.client import Target, Trace
from bench.common.prompt import prompt

try:
    import uvloop
except ImportError:  # it only costs less
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    new_event_loop = uvloop.new_event_loop

Body = dict[str, object]


@dataclass(frozen=True, slots=True)
class Job:
    """One request.

    Args:
        at: seconds after the start when it arrives; ``None`` = as soon as a client is free.
    """

    body: Body
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Requests and when they are sent.

    Args:
        clients: how many clients take the jobs without a time, in order, each the next when its last one was answered.
        after_clients: the times of the others count from when every client has had text.
        keep: the answers' bytes are wanted, not only their times.
    """

    jobs: Sequence[Job]
    clients: int = 0
    after_clients: bool = False
    keep: bool = False

    @classmethod
    def from_json(cls, found: Mapping[str, object]) -> Load:
        values = dict(found)
        jobs = values.pop("jobs")
        assert isinstance(jobs, list)
        return cls([Job(**job) for job in jobs], **values)  # type: ignore[arg-type]


Send = Callable[[Body, Trace], Awaitable[None]]


async def perform(load: Load, send: Send) -> list[Trace]:
    """The whole load; traces in the order of its jobs."""
    begin = time.perf_counter()
    traces = [Trace(begin + (job.at or 0.0), load.keep) for job in load.jobs]
    waiting = iter([index for index, job in enumerate(load.jobs) if job.at is None])
    first = [trace for job, trace in zip(load.jobs, traces, strict=True) if job.at is None][: load.clients]

    async def client() -> None:
        for index in waiting:
            traces[index].due = time.perf_counter()
            await send(load.jobs[index].body, traces[index])

    async def arrive(index: int, at: float) -> None:
        while load.after_clients and not all(trace.times or trace.end for trace in first):
            await asyncio.sleep(0.002)
        zero = time.perf_counter() if load.after_clients else begin
        traces[index].due = zero + at
        await asyncio.sleep(max(zero + at - time.perf_counter(), 0.0))
        await send(load.jobs[index].body, traces[index])

    due = [(job.at, index) for index, job in enumerate(load.jobs) if job.at is not None]
    timed = [arrive(index, at) for at, index in sorted(due)]  # what is late already goes in this order
    await asyncio.gather(*(client() for _ in range(load.clients)), *timed)
    return traces


async def over_http(target: Target, load: Load) -> list[Trace]:
    """The load on a server. Requests are encoded before the clock starts."""
    encoded = {id(job.body): target.request(job.body) for job in load.jobs}
    return await perform(load, lambda body, trace: target.send(encoded[id(body)], trace))


def arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Seconds of ``count`` Poisson arrivals of ``rate`` per second."""
    draw = random.Random(seed)
    return list(accumulate(draw.expovariate(rate) for _ in range(count)))


def streaming(ids: Sequence[int], tokens: int, extra: Mapping[str, object]) -> Body:
    """Body of a greedy stream of ``tokens`` tokens from a prompt."""
    body: Body = {"prompt": list(ids), "max_tokens": tokens, "temperature": 0, "stream": True}
    return {**body, "stream_options": {"include_usage": True}, **extra}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 (nearest rank) and max of seconds, in milliseconds; empty without values."""
    ordered = sorted(values)
    last = len(ordered) - 1
    names = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    return {name: round(1e3 * ordered[round(last * p / 100)], 2) for name, p in names.items()} if ordered else {}


def gaps(trace: Trace) -> Iterator[tuple[float, float]]:
    """``(when it ended, seconds)`` of each wait between two events with text."""
    return ((late, late - early) for early, late in zip(trace.times, trace.times[1:], strict=False))


def steady_rate(traces: Sequence[Trace]) -> float:
    """Tokens per second while every stream was decoding: from the last first token to the first last one.

    0 if there was no such time, as when requests follow one another.
    """
    if not traces or not all(trace.times for trace in traces):
        return 0.0
    start, stop = max(trace.times[0] for trace in traces), min(trace.times[-1] for trace in traces)
    tokens = sum(trace.per_event * sum(start < at <= stop for at in trace.times) for trace in traces)
    return tokens / (stop - start) if stop > start else 0.0


def wall(traces: Sequence[Trace]) -> float:
    """Seconds from the first request to the last answer's end."""
    return max((trace.end for trace in traces), default=0.0) - min((trace.due for trace in traces), default=0.0)


def summary(traces: Sequence[Trace]) -> dict[str, object]:
    """Counts, rates (tokens per second) and latencies (milliseconds); failed requests count in ``failed`` only."""
    good, seconds = [trace for trace in traces if trace.good], wall(traces)
    tokens = sum(round(trace.per_event * len(trace.times)) for trace in good)
    return {
        "requests": len(traces),
        "failed": len(traces) - len(good),
        "errors": sorted({trace.error or "no text" for trace in traces if not trace.good})[:3],
        "tokens": tokens,
        "wall_s": round(seconds, 3),
        "tokens_per_s": round(tokens / seconds, 2) if seconds else 0.0,
        "steady_tokens_per_s": round(steady_rate(good), 2),
        "ttft_ms": percentiles([trace.times[0] - trace.due for trace in good]),
        "gap_ms": percentiles([gap for trace in good for _, gap in gaps(trace)]),
    }


def to_json(traces: Sequence[Trace]) -> list[dict[str, object]]:
    """Traces for another process: times from the first one's, bodies as text."""
    zero = min((trace.due for trace in traces), default=0.0)

    def told(trace: Trace) -> dict[str, object]:
        times = [round(at - zero, 6) for at in trace.times]
        moved = {"due": round(trace.due - zero, 6), "end": round(trace.end - zero, 6), "times": times}
        return asdict(trace) | moved | {"body": trace.body.decode(errors="replace")}

    return [told(trace) for trace in traces]


def from_json(found: Sequence[Mapping[str, object]]) -> list[Trace]:
    """What ``to_json`` made."""
    return [Trace(**{**one, "body": str(one["body"]).encode()}) for one in found]  # type: ignore[arg-type]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Command line -> options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="default")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--serial", type=int, default=0, help="number of the first prompt")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds one answer may take")
    parser.add_argument("--extra", type=json.loads, default={}, help='more body fields as a JSON object, such as {"ignore_eos": true}')
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--clients", type=int, help="closed loop with this many clients")
    how.add_argument("--rate", type=float, help="open loop with this many arrivals per second")
    how.add_argument("--jobs", type=Path, help="a file with a load as JSON: jobs (body, at), clients, after_clients, keep")
    parser.add_argument("--traces", type=Path, help="a file for every request's trace, as JSON")
    parser.add_argument("--requests", type=int, help="requests in all; default: one per client, or 100")
    parser.add_argument("--seed", type=int, default=0, help="of the arrival times")
    return parser.parse_args(argv)


def load_of(options: argparse.Namespace) -> Load:
    """The load that the command line describes."""
    if options.jobs:
        return Load.from_json(json.loads(options.jobs.read_text()))
    count = options.requests or options.clients or 100
    prompts = [prompt(options.serial + i, options.prompt_tokens) for i in range(count)]
    bodies = [streaming(ids, options.max_tokens, options.extra) for ids in prompts]
    if options.clients:
        return Load([Job(body) for body in bodies], options.clients)
    return Load([Job(body, at) for body, at in zip(bodies, arrivals(options.rate, count, options.seed), strict=True)])


def main(argv: Sequence[str]) -> int:
    """Run one load and print its summary. Failed requests are told in it; the exit code is 0."""
    options = parse(argv)
    target, load = Target(options.url, options.model, options.api_key, options.timeout), load_of(options)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        before = time.process_time()
        traces = runner.run(over_http(target, load))
        spent = {"client_cpu_s": round(time.process_time() - before, 3)}
    if options.traces:
        options.traces.write_text(json.dumps(to_json(traces)))
    print(json.dumps(summary(traces) | spent))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
