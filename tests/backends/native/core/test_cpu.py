"""What an engine computes on: the time of its threads is counted by kind of work, while somebody asks for it."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

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


TOO_MANY = """
import pathlib, resource
from quintet.backends.native.worker.weights import load_weights
now = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 200_000_000,) * 2)
try:
    load_weights(pathlib.Path("none"), threads=256, context=None, isa="", progress=print)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the address space, as Linux does")
def test_threads_that_the_system_does_not_grant_are_an_error_and_not_the_end_of_the_process() -> None:
    run = subprocess.run([sys.executable, "-c", TOO_MANY], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("ModelError 256 threads cannot be started (") and "--threads asks for fewer" in run.stdout
