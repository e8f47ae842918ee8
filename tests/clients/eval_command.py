"""``quintet eval`` with lm-eval itself: the same scores as lm-eval's own run, on a server that is started, and on one that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SERVED, PROJECT = os.environ["QUINTET_SERVED"], os.environ["QUINTET_PYTHON"]
EXPECTED: dict[str, Any] = json.loads(Path(os.environ["QUINTET_DIRECT_SCORES"]).read_text())
TASK = "quintet_facts"


def accuracy() -> float:
    """Of the model's own scores."""
    answers = [json.loads(line)["answer"] for line in Path("data/facts.jsonl").read_text().splitlines()]
    best = [max(range(len(choices)), key=lambda at: choices[at][0]) for choices in EXPECTED["loglikelihood"][TASK]]
    right = [int(answer == at) for answer, at in zip(answers, best, strict=True)]
    return sum(right) / len(right)


@pytest.mark.parametrize("words", [(), ("--url", f"{SERVED}/v1"), ("--url", SERVED, "--concurrent", "1")], ids=["own", "url", "one by one"])
def test_a_task_gives_the_models_own_accuracy(words: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    model = "smollm2" if words else os.environ.get("QUINTET_TEST_MODEL", "smollm2")
    command = [PROJECT, "-m", "quintet", "eval", model, TASK, "--include-path", "data", "--offline", "-o", str(out), *words]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert f"|{TASK}" in run.stdout
    found = json.loads(out.read_text())
    assert found["results"][TASK]["acc,none"] == pytest.approx(accuracy())
    assert found["config"]["model"] == "local-completions"
