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
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.common.prompt import prompt
from quintet.load.client import Target
from quintet.load.figures import summary, to_json
from quintet.load.play import Body, Job, Load, arrivals, over_http

try:
    import uvloop
except ImportError:  # it only costs less
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    new_event_loop = uvloop.new_event_loop


def streaming(ids: Sequence[int], tokens: int, extra: Mapping[str, object]) -> Body:
    """Body of a greedy stream of ``tokens`` tokens from a prompt."""
    body: Body = {"prompt": list(ids), "max_tokens": tokens, "temperature": 0, "stream": True}
    return {**body, "stream_options": {"include_usage": True}, **extra}


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
