"""Thousands of requests in simulated worlds, where everything that can go wrong does. ``make test-simulation`` does a million."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.simulation.run import cases, known, promise, report, run_all

ROOT = Path(__file__).parents[2]
TOTAL = int(os.environ.get("QUINTET_SIMULATED_REQUESTS", "6000"))
SEED = int(os.environ.get("QUINTET_SIMULATION_SEED", "1"))


def digest(seed: int) -> str:
    """Of everything that happens in a world."""
    broken, world = promise(cases(seed, 1)[0])
    return hashlib.sha256(repr((broken, world.watch.lines, sorted(world.ends.items()))).encode()).hexdigest()


@pytest.mark.timeout(6 * 3600)
@pytest.mark.fault("B19", "B20", "C05", "C11", "C14", "D06", "E08", "F08")
def test_whatever_goes_wrong_each_request_ends_once_with_the_bytes_it_has_alone_and_nothing_is_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    begin = time.perf_counter()
    outcome = run_all([*known(), *cases(SEED, TOTAL)], os.cpu_count() or 1)
    seconds = time.perf_counter() - begin
    with capsys.disabled():
        print(f" {report(outcome, SEED)}\n{outcome.requests / seconds:,.0f} requests a second ", end="")
    assert not outcome.broken
    assert outcome.ends["eos"] > 0 < outcome.ends["length"], "nothing was computed"


def test_a_seed_is_the_same_world_to_the_last_event_whatever_ran_before_and_however_python_hashes() -> None:
    before = digest(7)
    digest(8)
    assert digest(7) == before
    code = "import sys; from tests.simulation.test_simulation import digest; print(digest(7))"
    for hashing in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hashing, "PYTHONPATH": str(ROOT)}
        other = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
        assert other.stdout.strip() == before
