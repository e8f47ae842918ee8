"""bench/README.md lists every program of the benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
STARTED_BY_OTHERS = ("worker_", "vllm_model")
PROGRAMS = [
    ".".join(path.with_suffix("").relative_to(BENCH.parent).parts)
    for path in sorted(BENCH.glob("*/*.py"))
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8") and not path.name.startswith(STARTED_BY_OTHERS)
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_has_its_line(program: str) -> None:
    assert f"python -m {program}" in (BENCH / "README.md").read_text(encoding="utf-8")
