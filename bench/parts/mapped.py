"""Time of a decode step with weights mapped by huge pages, mapped by small pages, and copied into memory of the process's own, in turns.

    python -m bench.parts.mapped [MODEL] [--rounds 30]

All three read the same pack in one process. Printed are the best step of one sequence, the median of the rounds, and the median ratio
to the copy. Where the system maps no file by huge pages, the first two are the same, and the share that is printed says so.
"""

from __future__ import annotations

import argparse
import mmap
import os
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from bench.common.command import model_path
from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.packed import huge_copy
from quintet.backends.native.core.runner import NativeRunner
from quintet.backends.native.core.types import U8, Batch
from quintet.backends.native.worker.mapping import mapped, on_huge_pages
from quintet.backends.native.worker.pack_directory import read
from quintet.backends.native.worker.weights import load_weights
from quintet.config import CacheFolder
from quintet.models.gguf import open_model

STEPS = 4


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    path = Path(model_path(args.model))
    with TemporaryDirectory(dir=path.parent) as folder:
        load_weights(path, threads=args.threads, context=64, isa="", progress=lambda _: None, packs=CacheFolder(f"{folder}/packs", 1 << 40))
        (pack,) = Path(folder).rglob("*.pack")
        runners = runners_of(path, pack, args.threads)
    times: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(args.rounds):
        for name, runner in list(runners.items())[:: 1 if turn % 2 else -1]:
            times[name].append(min(step(runner) for _ in range(STEPS)))
    copy = times["a copy"]
    for name, found in times.items():
        ratio = median(one / other for one, other in zip(found, copy, strict=True))
        print(f"{name:40} best {min(found) * 1e3:7.2f} ms, median {median(found) * 1e3:7.2f} ms, {ratio:.3f} of the copy")


def runners_of(path: Path, pack: Path, threads: int) -> dict[str, NativeRunner]:
    """A runner for each way to have a pack in memory."""
    cpu, model = Cpu("", threads), open_model(path)
    file = os.open(pack, os.O_RDONLY)
    of = read(file)
    small = mmap.mmap(file, of.end, access=mmap.ACCESS_READ)
    small.madvise(mmap.MADV_NOHUGEPAGE)
    ways = {"huge": mapped(file, of.end, whole=True), "small": np.frombuffer(small, np.uint8)}
    os.close(file)

    def runner(data: U8) -> NativeRunner:
        made = NativeRunner(model.spec, 64, cpu)
        made.give(model.tensors, {one.name: data[one.start : one.start + one.size] for one in of.tensors})
        made.allocate(4)
        step(made)
        return made

    made = {"a copy": runner(huge_copy(cpu, ways["huge"]))}
    for way, data in ways.items():
        one = runner(data)
        made[f"mapped by {way} pages ({on_huge_pages(data):.0%} huge)"] = one
    return made


def step(runner: NativeRunner) -> float:
    """Seconds of one token's step, with its logits."""
    one, zero = np.ones(1, np.int32), np.zeros(1, np.int32)
    begin = time.perf_counter()
    runner.logits(runner.forward(Batch(one, one, zero, zero[None], zero)))
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
