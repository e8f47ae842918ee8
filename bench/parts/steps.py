"""Time of one decode step at a context of your choice, of one or more builds of the core, in turns.

    python -m bench.parts.steps [MODEL] [--sequences 32] [--context 500] [--rounds 20] [--prefill] [--cpu] [--core other/_core.so ...]

Each build gets a process of its own, and all do a few steps in every round: what disturbs the machine disturbs them alike. Printed are the
best step and the median of the rounds, and the median ratio to the installed core. The pages of the sequences lie in random order, as on a
busy server; output matrix and sampling are left out. With ``--prefill`` a step is the last 128 tokens of each context instead. With
``--kv-type q8`` all have keys and values in 8 bits, and the installed core is also compared with itself without. On a machine that does
other work as well, ``--cpu --threads 1`` counts the time that the step had a CPU for itself.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

STEPS, CHUNK = 6, 128


def child(args: argparse.Namespace) -> None:
    """Do ``STEPS`` steps for every line that comes, and print the milliseconds of the best."""
    if args.core:
        spec = importlib.util.spec_from_file_location("quintet._core", args.core[0])
        assert spec and spec.loader
        sys.modules["quintet._core"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    import numpy as np
    from tests.support.loading import native_loader

    from quintet.backends.native.core.loader import PAGE
    from quintet.backends.native.core.types import Batch

    n, context, new = args.sequences, args.context, CHUNK if args.prefill else 1
    runner = native_loader(Path(args.model), threads=args.threads, context=context + PAGE, kv_type=args.kv_type)(lambda _share: None).runner
    rng = np.random.default_rng(0)
    tables = rng.permutation(n * (context // PAGE + 1)).reshape(n, -1).astype(np.int32)
    runner.allocate(tables.size)

    def step(sequences: int, start: int, count: int) -> float:
        tokens = rng.integers(0, runner.vocab, sequences * count).astype(np.int32)
        rows = np.arange(1, sequences + 1, dtype=np.int32) * np.int32(count) - np.int32(1)
        batch = Batch(tokens, np.full(sequences, count, np.int32), np.full(sequences, start, np.int32), tables[:sequences], rows)
        clock = time.thread_time if args.cpu else time.perf_counter
        begin = clock()
        runner.forward(batch)
        return clock() - begin

    step(1, 0, context)
    for table in tables[1:]:
        for source, target in zip(tables[0], table, strict=True):
            runner.copy_page(int(source), int(target))
    for _ in sys.stdin:
        print(min(step(n, context - new, new) for _ in range(STEPS)) * 1e3, flush=True)


def main() -> None:
    """Print a line for every build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    for name, default in (("sequences", 32), ("context", 500), ("rounds", 20), ("threads", os.cpu_count())):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--prefill", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="count CPU time of the calling thread; needs --threads 1")
    parser.add_argument("--core", action="append", default=[], help="a built _core library to compare with; may be given again")
    parser.add_argument("--kv-type", choices=("f16", "q8"), default="f16", help="with q8 the installed core is also compared with f16")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cpu and args.threads != 1:
        parser.error("--cpu counts one thread's time: add --threads 1")
    if args.child:
        child(args)
        return
    from bench.common.command import model_path

    words = [sys.executable, "-m", "bench.parts.steps", model_path(args.model), "--child", *(["--prefill"] if args.prefill else [])]
    words += ["--cpu"] if args.cpu else []
    words += [word for name in ("sequences", "context", "threads") for word in (f"--{name}", str(getattr(args, name)))]
    kind = ["--kv-type", args.kv_type]
    builds = {"installed": kind, **{core: ["--core", core, *kind] for core in args.core}}
    if args.kv_type != "f16":
        builds["installed, --kv-type f16"] = []
    times: dict[str, list[float]] = {name: [] for name in builds}
    children = [subprocess.Popen([*words, *build], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for build in builds.values()]
    try:
        for turn in range(args.rounds):
            for name, process in list(zip(builds, children, strict=True))[:: 1 if turn % 2 else -1]:
                assert process.stdin and process.stdout
                print(file=process.stdin, flush=True)
                times[name].append(float(process.stdout.readline()))
    finally:
        for process in children:
            process.kill()
    what = f"{args.sequences} sequences at {args.context} tokens" + (f", prefill of {CHUNK}" if args.prefill else "")
    for name in builds:
        ratio = median(mine / installed for mine, installed in zip(times[name], times["installed"], strict=True))
        print(f"{what}, {name}: best {min(times[name]):.2f} ms, median {median(times[name]):.2f} ms, {ratio:.3f} of the installed")


if __name__ == "__main__":
    main()
