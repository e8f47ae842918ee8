"""schemathesis, from each dialect's own OpenAPI document: no 5xx, and statuses, media types, bodies and events as described.

What the document forbids must be refused. What it allows need not be taken: rules over several fields, and what the model can do, are not
in it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import PATHS, TOY

EXAMPLES = 100
"""Per operation, besides those that reach every part of the schema."""


@pytest.mark.parametrize("dialect", PATHS)
def test_the_server_does_what_its_document_says(dialect: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("st")), "run", f"{TOY}/openapi.json?dialect={dialect}"]
    command += ["--seed", "1", "--max-examples", str(EXAMPLES), "--generation-database", "none", "--warnings", "off", "--no-color"]
    command += ["--checks", "all", "--exclude-checks", "positive_data_acceptance", "--continue-on-failure"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    print(done.stdout[done.stdout.index("Test cases:") :])
