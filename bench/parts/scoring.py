"""CPU time of scoring a row of a prompt in the core, beside its forward pass in a prefill.

    python -m bench.parts.scoring [MODEL] [--rows 128] [--rounds 10]

One thread, its CPU time, the best of the rounds: other programs disturb it little. The text is English. Printed are the forward pass, the
output matrix alone, the logits of 32 rows and then their scores, and both in one pass, as the engine does it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from tests.support.loading import native_loader

from bench.common.command import model_path
from bench.common.prompt import prompt
from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.native.core.types import I32, U8, Batch, Runner, Samplers, Scorer

BLOCK, TOP = 32, 20


def apart(runner: Runner, samplers: Samplers | None, hidden: U8, targets: I32) -> None:
    """The logits of a block of rows, and its scores if there are samplers."""
    for at in range(0, len(hidden), BLOCK):
        logits = runner.logits(hidden[at : at + BLOCK])
        if samplers is not None:
            samplers.score(logits, targets[at : at + BLOCK], TOP)


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    for name, default in (("rows", 128), ("rounds", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    rows = args.rows
    loaded = native_loader(Path(model_path(args.model)), threads=1, context=rows)(lambda _share: None)
    runner = loaded.runner
    assert isinstance(runner, Scorer)
    assert loaded.cpu is not None
    samplers = NativeSamplers(loaded.cpu, [b""] * runner.vocab, ())
    table = np.arange(-(-rows // PAGE), dtype=np.int32)[None]
    runner.allocate(table.size)
    text = np.array([token % runner.vocab for token in prompt(0, rows + 1)], np.int32)
    length, start, targets = np.array([rows], np.int32), np.zeros(1, np.int32), text[1:]
    batch = Batch(text[:rows], length, start, table, np.arange(rows, dtype=np.int32))
    hidden = runner.forward(batch)
    works: dict[str, Callable[[], object]] = {
        "forward pass": partial(runner.forward, batch),
        "output matrix": partial(apart, runner, None, hidden, targets),
        "logits, then scores": partial(apart, runner, samplers, hidden, targets),
        "in one pass": partial(runner.score, hidden, targets, TOP),
    }
    best = dict.fromkeys(works, float("inf"))
    for _ in range(args.rounds):
        for name, work in works.items():
            begin = time.thread_time()
            work()
            best[name] = min(best[name], time.thread_time() - begin)
    for name, seconds in best.items():
        print(f"{name}: {seconds / rows * 1e6:.1f} us a row, {seconds / best['forward pass']:.3f} of the forward pass")


if __name__ == "__main__":
    main()
