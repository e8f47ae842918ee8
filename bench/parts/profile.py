"""What the time of a step goes into, counted by the core itself: a table by kind of work.

    python -m bench.parts.profile [MODEL] [--sequences 1,8,16,32] [--context 96] [--steps 40] [--threads 2] [--logprobs 5] [--prefill]

A step is what the engine does for sequences that decode: forward pass, output matrix, and a draw for each, with ``--logprobs`` the
log-probabilities of the drawn tokens too. With ``--prefill`` it is a prompt of so many tokens as ``--sequences`` says. A row is the least
of all steps, milliseconds, the mean of the threads: other programs disturb some part of every step, but no part of all. Only ``waiting``
is that of the quickest step. Below them are their sum and the quickest step.

``outside`` is what is between two calls of the core, Python above all (and the draws of few rows, which no second thread helps with);
``waiting`` is for the other threads at the end of a phase. csrc/spent.h says what the others are.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from tests.support.loading import native_loader

from bench.common.command import model_path
from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.native.core.types import I32, Batch, Runner, Sampler, Samplers
from quintet.request import Sampling

WARM = 3
"""Steps before those that count: pages and caches are not warm yet."""

CHOICE = Sampling(0.8, 1.0, 0)

QUICKEST = "quickest step"

Spent = dict[str, float]


def tables_of(count: int, context: int) -> I32:
    """Pages of so many sequences."""
    width = -(-context // PAGE)
    return np.arange(count * width, dtype=np.int32).reshape(count, width)


def fill(runner: Runner, count: int, context: int) -> None:
    """Keys and values in all pages that a step reads: unwritten ones are the same zeros, which the system has once and a cache holds."""
    prefill(runner, context)
    tables = tables_of(count, context)
    for target in tables[1:].flat:
        runner.copy_page(int(target) % tables.shape[1], int(target))


def decode(runner: Runner, samplers: Samplers, own: Sequence[Sampler], context: int, logprobs: int | None) -> None:
    """A token of each sequence, at the end of its context."""
    count = len(own)
    tables = tables_of(count, context)
    ones, rows = np.ones(count, np.int32), np.arange(count, dtype=np.int32)
    tokens = np.arange(1, count + 1, dtype=np.int32)
    logits = runner.logits(runner.forward(Batch(tokens, ones, ones * np.int32(context - 1), tables, rows)))
    samplers.draw(logits, own, np.zeros(count, np.uint64), alternatives=None if logprobs is None else ones * np.int32(logprobs))


def prefill(runner: Runner, count: int) -> None:
    """A prompt of so many tokens, up to its last row."""
    tokens = np.arange(1, count + 1, dtype=np.int32)
    runner.forward(Batch(tokens, np.array([count], np.int32), np.zeros(1, np.int32), tables_of(1, count), np.array([count - 1], np.int32)))


def spent(cpu: Cpu, step: Callable[[], None]) -> Spent:
    """Of one step the seconds of each kind of work, the mean of the threads; they sum to its time."""
    cpu.begin_counting()
    begin = time.perf_counter()
    step()
    seconds = time.perf_counter() - begin
    threads = cpu.end_counting()
    kinds = {kind: sum(thread[kind] for thread in threads) / len(threads) for kind in threads[0]}
    return kinds | {"outside": kinds["outside"] + max(0.0, seconds - sum(kinds.values()))}


def least(steps: list[Spent]) -> Spent:
    """Of each kind, but waiting."""
    quickest = min(steps, key=lambda step: sum(step.values()))
    found = {kind: min(step[kind] for step in steps) for kind in quickest}
    return found | {"waiting": quickest["waiting"], QUICKEST: sum(quickest.values())}


def table(columns: dict[str, Spent]) -> str:
    """Milliseconds and shares, a row for each kind of work that there was."""
    sums = {name: sum(column.values()) - column[QUICKEST] for name, column in columns.items()}
    kinds = [kind for kind in next(iter(columns.values())) if kind != QUICKEST and any(column[kind] > 0 for column in columns.values())]
    lines = [f"{'':14}" + "".join(f"{name:>18}" for name in columns)]
    for kind in kinds:
        cells = (f"{1e3 * column[kind]:9.3f} {column[kind] / sums[name]:7.1%}" for name, column in columns.items())
        lines.append(f"{kind:14}" + "".join(f"{cell:>18}" for cell in cells))
    ends: dict[str, list[float]] = {"sum": list(sums.values()), QUICKEST: [column[QUICKEST] for column in columns.values()]}
    lines += [f"{name:14}" + "".join(f"{1e3 * total:9.3f} {'':>8}" for total in totals) for name, totals in ends.items()]
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--sequences", type=lambda text: tuple(map(int, text.split(","))), default=(1, 8, 16, 32))
    for name, default in (("context", 96), ("steps", 40), ("threads", os.cpu_count())):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--logprobs", type=int, help="alternatives; without it no log-probabilities are computed")
    parser.add_argument("--prefill", action="store_true")
    args = parser.parse_args()
    widest = max(args.sequences)
    longest = widest if args.prefill else args.context
    loaded = native_loader(Path(model_path(args.model)), threads=args.threads, context=longest)(lambda _share: None)
    runner, cpu = loaded.runner, loaded.cpu
    assert cpu is not None
    runner.allocate(-(-longest // PAGE) * (1 if args.prefill else widest))
    samplers = NativeSamplers(cpu, [b""] * runner.vocab, ())
    if not args.prefill:
        fill(runner, widest, longest)
    columns = {}
    for count in args.sequences:
        own = [samplers.make(CHOICE, (), ()) for _ in range(count)]
        step = partial(prefill, runner, count) if args.prefill else partial(decode, runner, samplers, own, args.context, args.logprobs)
        columns[str(count)] = least([spent(cpu, step) for _ in range(WARM + args.steps)][WARM:])
    print(table(columns))


if __name__ == "__main__":
    main()
