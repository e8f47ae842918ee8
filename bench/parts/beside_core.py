"""Tokens/s of streams over HTTP while all of them decode, beside the bare core at the same contexts, in turns.

    python -m bench.parts.beside_core [MODEL] [--clients 32] [--tokens 320] [--rounds 10] [--url http://127.0.0.1:8001 ...]

The server is one of its own; with ``--url`` others are measured in the same turns, such as one of another version, which must serve the
model as ``default``. The core does what the engine's steps do: forward pass, output matrix and a greedy draw, in a process of its own
that waits while a server is measured. Nothing is drafted. Printed are each round and the medians; single rounds differ by a few percent.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, median

import numpy as np
from tests.support.loading import native_loader

from bench.common.command import model_path
from bench.common.probe import serving
from bench.parts.profile import fill, tables_of
from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.native.core.types import Batch
from quintet.request import Sampling

PROMPT = 64
"""Tokens before those that are measured."""


def child(args: argparse.Namespace) -> None:
    """Decode for every line that comes, and print tokens/s."""
    n, longest = args.clients, PROMPT + args.tokens + PAGE
    loaded = native_loader(Path(args.model), threads=args.threads, context=longest)(lambda _share: None)
    runner = loaded.runner
    tables = tables_of(n, longest)
    runner.allocate(tables.size)
    assert loaded.cpu is not None, "the model computes here"
    samplers = NativeSamplers(loaded.cpu, [b""] * runner.vocab, ())
    own = [samplers.make(Sampling(0.0, 1.0, 0), (), ()) for _ in range(n)]
    fill(runner, n, longest)
    ones, rows = np.ones(n, np.int32), np.arange(n, dtype=np.int32)
    for _ in sys.stdin:
        tokens = np.arange(1, n + 1, dtype=np.int32)
        begin = time.perf_counter()
        for position in range(PROMPT, PROMPT + args.tokens):
            logits = runner.logits(runner.forward(Batch(tokens, ones, ones * np.int32(position), tables, rows)))
            tokens = samplers.draw(logits, own, np.full(n, position, np.uint64)).tokens
        print(n * args.tokens / (time.perf_counter() - begin), flush=True)


def streams(url: str, args: argparse.Namespace) -> float:
    """Tokens/s from the last first token to the first end."""
    numbers = {"clients": args.clients, "prompt-tokens": PROMPT, "max-tokens": args.tokens}
    words = [word for name, value in numbers.items() for word in (f"--{name}", str(value))] + ["--extra", '{"ignore_eos": true}']
    command = [sys.executable, "-m", "bench.common.load", "--url", f"{url}/v1/completions", *words]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["steady_tokens_per_s"])


def main() -> None:
    """Print rounds and medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    for name, default in (("clients", 32), ("tokens", 320), ("rounds", 10), ("threads", os.cpu_count())):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--url", action="append", default=[], help="of another server, which serves the model as 'default'")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
        return
    words = [sys.executable, "-m", "bench.parts.beside_core", model_path(args.model), "--child"]
    words += [word for name in ("clients", "tokens", "threads") for word in (f"--{name}", str(getattr(args, name)))]
    options = ["--threads", str(args.threads), "--speculation", "off", "--served-model-name", "default"]
    core = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert core.stdin and core.stdout
    shares: dict[str, list[float]] = {}
    try:
        with serving(args.model, *options) as (_, address):
            servers = {"its server": f"http://{address}", **{url: url for url in args.url}}
            for turn in range(args.rounds + 1):
                rates: dict[str, tuple[float, float]] = {}
                for name, url in list(servers.items())[:: 1 if turn % 2 else -1]:
                    print(file=core.stdin, flush=True)
                    rates[name] = float(core.stdout.readline()), streams(url, args)
                if not turn:
                    continue  # memory is touched, caches fill
                bare = mean(rate for rate, _ in rates.values())
                for name, (_, rate) in rates.items():
                    shares.setdefault(name, []).append(rate / bare)
                told = ", ".join(f"{name} {rates[name][1]:.0f}" for name in servers)
                print(f"{args.clients} clients, round {turn}: the core {bare:.0f} tokens/s, {told}", flush=True)
    finally:
        core.kill()
    for name, each in shares.items():
        print(f"{args.clients} clients, {name}: {median(each):.3f} of the core, {min(each):.3f} to {max(each):.3f}")


if __name__ == "__main__":
    main()
