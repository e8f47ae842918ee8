"""The wall clock is for dates only: it may jump, and no deadline does."""

from __future__ import annotations

import ast
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from tests.server.asgi import SOURCE, call
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig

SOURCES = Path(__file__).parents[2] / "src" / "quintet"
PACKS = {"backends/native/worker/packs.py", "backends/native/worker/packing.py"}
KEPT = {"backends/native/worker/kept_files.py"}
BATCHES = {"batches/runner.py", "cli/batch_run.py"}
DATED = {"server/source.py", "ledger/ledger.py", "cli/keys.py", "cli/serve.py", "cli/exporting.py", *PACKS, *KEPT, *BATCHES}
"""Files that ask for the date: ``created``, the lines of the log and the rows of the ledger; when a key begins and ends to count; the times
that a file system keeps of packs and prefixes; when batches and their files expire; when a span began."""


@pytest.mark.fault("D09")
@pytest.mark.parametrize("stream", [False, True])
def test_a_clock_that_jumps_by_hours_ends_nothing_early_and_keeps_nothing_late(stream: bool) -> None:
    jumps = itertools.cycle((1_700_000_000.0, 1_700_000_000.0 + 3600, 1_700_000_000.0 - 3600, 0.0))
    source = replace(SOURCE, now=lambda: next(jumps))
    app = create_app(ScriptedBackend(), ServerConfig(timeout=60), source=source)
    for _ in range(8):
        answer = call(app, {"prompt": "a", "max_tokens": 3, "stream": stream})
        assert answer.status == 200 and answer.complete
        assert b'"finish_reason":"length"' in answer.body


@pytest.mark.fault("D09")
def test_whoever_asks_for_the_date_writes_one() -> None:
    """``time.time`` and ``datetime.now`` jump with the machine's clock; time that passes is measured by ``time.monotonic``."""
    asking = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow"):
                asking.add(path.relative_to(SOURCES).as_posix())
    assert asking == DATED
