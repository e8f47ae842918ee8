"""``bench.endurance`` as a whole, for seconds, on the toy: it loads, hurts, looks and reports. Its figures are for a quiet machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.test_serve_command import PATIENCE_S

ROOT = Path(__file__).parents[2]


def ran(what: str, *words: str) -> str:
    command = [sys.executable, "-m", f"bench.endurance.{what}", "--model", "toy", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
    return done.stdout


def figures(report: str) -> dict[str, float]:
    rows = [line.split("|") for line in report.splitlines() if line.startswith("|")]
    return {row[1].strip(): float(row[2]) for row in rows[2:]}


def test_a_soak_reports_what_became_of_its_faults() -> None:
    found = figures(ran("soak", "--hours", "0.0012", "--peak", "2", "--fault-every", "1.5", "--clients", "4", "--tokens", "16"))
    assert found["answers to the same request"] == 1
    assert found["requests lost outside faults"] == found["hostile bodies answered with 5xx outside faults"] == 0
    assert found["longest recovery, s"] > 0
    assert found["requests and pages held at rest"] == 0


def test_an_overload_reports_what_was_refused_and_how_soon_it_is_over() -> None:
    size = ("--seconds", "3", "--peak", "2", "--tokens", "200", "--waiting", "2", "--clients", "8", "--times", "10", "--storm", "5")
    found = figures(ran("overload", *size))
    assert found["goodput / peak"] > 0
    assert found["requests refused"] >= 0
    assert found["requests broken off"] == 0
    assert found.keys() >= {"refusals, p99, ms", "memory beyond that at peak, MiB", "back to normal, s"}
