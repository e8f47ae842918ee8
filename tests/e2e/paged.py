"""Sequences on KV pages, stepped through a ``Runner`` in any chunks, in any company: what a scheduler may do, without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.types import U8, Batch, Runner

CONTEXT = 2048
PAGES = 192
"""KV pages of each test runner: room for 32 sequences of up to 96 tokens, or one of the whole context."""

LoadRunner = Callable[..., Runner]
"""``load_runner(path, threads=1, isa=None, quantize="q8", kv_type="f16")``, a fixture."""

Ids = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


def pages_for(tokens: int) -> int:
    return -(-tokens // PAGE)


@dataclass
class Run:
    """A sequence and how it is to be computed.

    Args:
        tokens: int32 [T].
        chunks: tokens per step, adding up to T - done.
        pages: its pages in order, at least enough for T tokens.
        done: tokens whose keys and values already lie in the pages.
    """

    tokens: Ids
    chunks: list[int]
    pages: list[int]
    done: int = 0


def whole(tokens: Ids, first_page: int = 0) -> Run:
    """The sequence in one chunk on consecutive pages."""
    return Run(tokens, [len(tokens)], list(range(first_page, first_page + pages_for(len(tokens)))))


def step(runner: Runner, runs: Sequence[Run], sizes: Sequence[int]) -> list[U8]:
    """One forward pass over the next ``sizes[i]`` tokens of each run: their hidden rows, uint8 [sizes[i], row_bytes]."""
    tables = np.zeros((len(runs), max(len(run.pages) for run in runs)), dtype=np.int32)
    for row, run in zip(tables, runs, strict=True):
        row[: len(run.pages)] = run.pages
    batch = Batch(
        tokens=np.concatenate([run.tokens[run.done : run.done + size] for run, size in zip(runs, sizes, strict=True)]),
        lengths=np.array(sizes, dtype=np.int32),
        starts=np.array([run.done for run in runs], dtype=np.int32),
        tables=tables,
        rows=np.arange(sum(sizes), dtype=np.int32),
    )
    hidden = runner.forward(batch)
    for run, size in zip(runs, sizes, strict=True):
        run.done += size
    return np.split(hidden, np.cumsum(sizes)[:-1])


def run_together(runner: Runner, runs: Sequence[Run], arrivals: Sequence[int] = ()) -> list[U8]:
    """Step all runs side by side, each by its own chunks, until all are done: the hidden rows of each, uint8 [T - done, row_bytes].

    Args:
        arrivals: the step from which each run takes part; all from the first if empty.
    """
    queues = [list(run.chunks) for run in runs]
    rows: list[list[U8]] = [[] for _ in runs]
    now = 0
    while any(queues):
        active = [i for i, queue in enumerate(queues) if queue and (not arrivals or arrivals[i] <= now)]
        now += 1
        hidden = step(runner, [runs[i] for i in active], [queues[i].pop(0) for i in active]) if active else []
        for i, part in zip(active, hidden, strict=True):
            rows[i].append(part)
    return [np.concatenate(parts) for parts in rows]


def run_alone(runner: Runner, run: Run) -> U8:
    """The hidden rows of one run by itself: uint8 [T - done, row_bytes]."""
    return run_together(runner, [run])[0]


def logits_of(runner: Runner, hidden: U8) -> F32:
    """A copy of the logits of hidden rows: float32 [R, V]."""
    return np.array(runner.logits(np.ascontiguousarray(hidden)))


def assert_same_bits(left: npt.NDArray[np.generic], right: npt.NDArray[np.generic]) -> None:
    """Equal bit for bit (also zeros' signs); says which rows differ."""
    assert left.shape == right.shape and left.dtype == right.dtype
    as_bytes = [np.ascontiguousarray(x).view(np.uint8).reshape(len(x), -1) for x in (left, right)]
    differing = np.flatnonzero((as_bytes[0] != as_bytes[1]).any(axis=1))
    assert differing.size == 0, f"{differing.size} of {len(left)} rows differ: {differing[:20].tolist()}"
