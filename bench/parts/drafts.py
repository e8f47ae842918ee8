"""What a draft model brings: tokens per second of a model with one and without, in pairs.

    python -m bench.parts.drafts MODEL DRAFT [--tokens 256] [--rounds 3] [--threads N] [--case code ...]

Two processes, with the draft model and without, complete the same prompts in turns: what disturbs the machine disturbs both. Of each case:
tokens per second from the first token on (median over prompts and rounds), the median of the ratios of pairs, processor seconds per
token, tokens per step, and the share of the draft model's tokens that were drawn. That both give the same tokens is checked.

``code`` is what a draft model is for; in ``noise`` (temperature 2) it is seldom right, and ``crowd`` is more sequences than it is asked
for: there it must cost no more than 2 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

PROMPTS = (
    'def quicksort(items):\n    """Sort a list of numbers in place."""\n',
    'import sqlite3\n\n\nclass Store:\n    """Keeps notes in a SQLite database."""\n\n    def __init__(self, path):\n',
    "// A ring buffer of bytes.\n#include <vector>\n#include <cstdint>\n\nclass RingBuffer {\n public:\n",
    "package main\n\n// Reads a CSV file and prints the sum of each column.\nimport (\n",
)
CONTEXT = 1024


@dataclass(frozen=True)
class Case:
    """What is completed: so many samples of each prompt at once, at a temperature."""

    temperature: float
    sequences: int


CASES = {"code": Case(0.0, 1), "sampled": Case(0.8, 1), "four": Case(0.0, 4), "noise": Case(2.0, 1), "crowd": Case(0.0, 12)}


def child(args: argparse.Namespace) -> None:
    """Complete a prompt for every line that comes, and print what that took."""
    from tests.support.loading import native_loader
    from tests.support.preparing import prepare

    from quintet.backends.base import State
    from quintet.backends.native.front.engine import Engine
    from quintet.config import EngineConfig
    from quintet.inputs.sequence import SequenceSpec
    from quintet.request import Sampling

    async def complete(engine: Engine, prompt: str, case: Case) -> dict[str, Any]:
        specs = [
            SequenceSpec(prompt, args.tokens, Sampling(case.temperature, 1.0, seed, ignore_eos=True), None, False)
            for seed in range(case.sequences)
        ]
        before, cpu, first, tokens = engine.health().counts, time.process_time(), 0.0, list[tuple[int, int]]()
        async for batch in engine.submit(await prepare(engine, specs)):
            first = first or time.perf_counter()
            tokens += [(event.seq, event.token) for event in batch]
        took, cpu, after = time.perf_counter() - first, time.process_time() - cpu, engine.health().counts
        counts = {name: getattr(after, name) - getattr(before, name) for name in ("steps", "drafted_by_model", "accepted_by_model")}
        return {"tokens": sorted(tokens, key=lambda one: one[0]), "seconds": took, "cpu": cpu, **counts}

    async def serve() -> None:
        draft = Path(args.draft) if args.with_draft else None
        engine = Engine(native_loader(Path(args.model), threads=args.threads, context=CONTEXT, draft=draft), EngineConfig(kv_bytes=1 << 29))
        while engine.health().state is State.LOADING:
            await asyncio.sleep(0.05)
        while line := await asyncio.to_thread(sys.stdin.readline):
            name, prompt = line.split()
            print(json.dumps(await complete(engine, PROMPTS[int(prompt)], CASES[name])), flush=True)
        await engine.close()

    asyncio.run(serve())


def ask(process: subprocess.Popen[str], name: str, prompt: int) -> dict[str, Any]:
    """What the child says of a prompt."""
    assert process.stdin and process.stdout
    print(name, prompt, file=process.stdin, flush=True)
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def line(name: str, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """A case's figures."""
    case = CASES[name]
    speeds = [[(len(one["tokens"]) - case.sequences) / one["seconds"] for one in side] for side in zip(*pairs, strict=True)]
    cpu = [sum(one["cpu"] for one in side) / sum(len(one["tokens"]) for one in side) for side in zip(*pairs, strict=True)]
    ratio = median(mine / plain for mine, plain in zip(*speeds, strict=True))
    drafted, accepted, steps = (sum(mine[key] for mine, _ in pairs) for key in ("drafted_by_model", "accepted_by_model", "steps"))
    told = f"{accepted / drafted:.2f} of {drafted} drafted tokens right" if drafted else "nothing drafted"
    per_step = sum(len(mine["tokens"]) for mine, _ in pairs) / steps
    return (
        f"{name}, {case.sequences} at temperature {case.temperature:g}: {median(speeds[0]):.1f} tokens/s with, "
        f"{median(speeds[1]):.1f} without, {ratio:.2f} x; CPU {cpu[0] * 1e3:.1f} and "
        f"{cpu[1] * 1e3:.1f} ms a token; {per_step:.2f} tokens a step; {told}"
    )


def main() -> None:
    """Print a line for every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="path of a model file")
    parser.add_argument("draft", help="path of its draft model's")
    for name, default in (("tokens", 256), ("rounds", 3), ("threads", os.cpu_count())):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--case", action="append", choices=CASES, help="only this one; may be given again")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--with-draft", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
        return
    words = [sys.executable, "-m", "bench.parts.drafts", args.model, args.draft, "--child"]
    words += [word for name in ("tokens", "threads") for word in (f"--{name}", str(getattr(args, name)))]
    children = [
        subprocess.Popen([*words, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for more in (["--with-draft"], [])
    ]
    try:
        for name in args.case or CASES:
            pairs = []
            for turn in range(args.rounds):
                for prompt in range(len(PROMPTS)):
                    found = {process: ask(process, name, prompt) for process in (children if (turn + prompt) % 2 else children[::-1])}
                    mine, plain = (found[process] for process in children)
                    if mine["tokens"] != plain["tokens"]:
                        sys.exit(f"{name}, prompt {prompt}: other tokens with the draft model than without")
                    pairs.append((mine, plain))
            print(line(name, pairs), flush=True)
    finally:
        for process in children:
            process.kill()


if __name__ == "__main__":
    main()
