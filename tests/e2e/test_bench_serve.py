"""``bench.serving.serve`` as a whole, on the toy model, which decodes too fast for what must happen while others decode."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.e2e.test_serve_command import PATIENCE_S, served

ROOT = Path(__file__).parents[2]


def test_the_scenarios_run_on_a_server_and_are_reported(tmp_path: Path) -> None:
    with served("--toy", "--log-level", "error") as one:
        url = f"{one.url}/fireworks/inference/v1/completions"
        where = ["--url", url, "--name", "toy", "--vocab", "256", "--quick", "--only", "clients,samples,scoring"]
        command = [sys.executable, "-m", "bench.serving.serve", *where, "--results", str(tmp_path), "--peers-dir", str(tmp_path / "peers")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())
    parts = {part["scenario"]: part for part in found["parts"]}
    assert {name: part["reasons"] for name, part in parts.items() if part["reasons"]} == {}
    assert all(one["failed"] == 0 for part in parts.values() for one in part["medians"])
    ratios = {(name, one["what"]): one for name, part in parts.items() for one in part["ratios"]}
    assert ratios["samples", "ours, computed / prompt tokens"]["value"] == 1
    assert ratios["scoring", "ours, cached against uncached, nats"]["value"] == 0
    assert path.with_suffix(".md").read_text() == done.stdout.rstrip("\n") + "\n"
