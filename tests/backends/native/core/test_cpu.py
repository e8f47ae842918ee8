"""What an engine computes on: the time of its threads is counted by kind of work, while somebody asks for it."""

from __future__ import annotations

import time

import numpy as np

from quintet.backends.native.core.cpu import Cpu

ROWS, VOCAB = 8, 40_000
"""So many logits that several threads work on them."""


def test_a_threads_time_is_counted_by_kind_of_work_from_begin_to_end() -> None:
    cpu = Cpu(threads=2)
    logits = np.random.default_rng(0).normal(size=(ROWS, VOCAB)).astype(np.float32)
    targets = np.zeros(ROWS, np.int32)
    begin = time.perf_counter()
    cpu.begin_counting()
    cpu.score(logits, targets, 5)
    threads = cpu.end_counting()
    wall = time.perf_counter() - begin
    assert len(threads) == 2
    assert all(thread.keys() == threads[0].keys() for thread in threads)
    assert {kind for kind, seconds in threads[0].items() if seconds > 0} == {"outside", "sampling", "waiting"}
    assert all(sum(thread.values()) <= wall for thread in threads)
    cpu.score(logits, targets, 5)
    assert cpu.end_counting() == threads, "nobody asked any more"
    cpu.begin_counting()
    assert not any(sum(thread.values()) for thread in cpu.end_counting())
