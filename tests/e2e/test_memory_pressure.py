"""A server whose memory runs short, and an engine that really gives some back."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.test_serve_command import PATIENCE_S, Served, served
from tests.reference.tiny_model import TinySpec
from tests.support.loading import native_loader
from tests.support.waiting import until

from quintet.backends.native.core.types import Batch, Runner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

GIB = 1 << 30

SCARCE = """
import sys
from pathlib import Path
from quintet import machine
left = Path({left!r})
machine.memory = lambda: (int(left.read_text()), 1 << 30)
from quintet.cli import main
main()
"""
"""A server that believes a file about how much memory there is left, of 1 GiB."""


def metric(one: Served, name: str) -> float:
    with urllib.request.urlopen(f"{one.url}/metrics", timeout=PATIENCE_S) as reply:
        found = re.search(rf"^{re.escape(name)}\{{.*\}} (\S+)$", reply.read().decode(), re.MULTILINE)
    assert found, name
    return float(found[1])


@pytest.mark.fault("D11")
def test_first_what_is_kept_goes_then_new_requests_are_refused_and_then_all_is_as_before(tmp_path: Path) -> None:
    left = tmp_path / "left"
    asked = {"prompt": "long enough for some pages " * 20, "max_tokens": 9, "temperature": 0}

    def say(share: float) -> None:
        new = tmp_path / "new"
        new.write_text(str(int(share * GIB)))
        new.replace(left)

    say(0.5)
    with served("--toy", code=SCARCE.format(left=str(left))) as one:
        before = json.loads(one.post(asked)[1])["choices"]
        until(lambda: metric(one, "quintet:kv_cache_cached_pages") > 10)
        say(0.07)
        until(lambda: metric(one, "quintet:caches_shed_total") == 1)
        until(lambda: metric(one, "quintet:kv_cache_cached_pages") == 0)
        assert json.loads(one.post(asked)[1])["choices"] == before
        say(0.04)
        until(lambda: one.post(asked)[0] == 503)
        assert b"short of memory" in one.post(asked)[1]
        assert metric(one, "quintet:requests_short_of_memory_total") >= 2
        assert metric(one, "quintet:memory_usage_perc") == pytest.approx(0.96, abs=1e-3)
        say(0.5)
        until(lambda: one.post(asked)[0] == 200)
        assert json.loads(one.post(asked)[1])["choices"] == before


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def rows(runner: Runner) -> bytes:
    tokens = np.arange(1, 33, dtype=np.int32)
    table = np.array([[5, 6]], np.int32)
    hidden = runner.forward(Batch(tokens, np.array([32], np.int32), np.zeros(1, np.int32), table, np.array([31], np.int32)))
    return hidden.tobytes()


def test_pages_that_are_touched_are_resident_before_they_are_written_and_hold_what_they_held(tiny_path: Callable[[TinySpec], Path]) -> None:
    runner = native_loader(tiny_path(TinySpec("ahead")), threads=1)(lambda _: None).runner
    pages = (64 << 20) // runner.page_bytes
    runner.allocate(pages)
    rows(runner)
    held, before = runner.read_page(5).tobytes(), resident()
    runner.touch_pages(0, pages)
    assert resident() - before > 48 << 20
    assert runner.read_page(5).tobytes() == held
    for first, last in ((-1, 3), (0, pages + 1), (4, 3)):
        with pytest.raises(ValueError, match="pages"):
            runner.touch_pages(first, last)


@pytest.mark.fault("D11")
def test_pages_that_are_dropped_are_memory_of_the_system_again_and_compute_the_same(tiny_path: Callable[[TinySpec], Path]) -> None:
    runner = native_loader(tiny_path(TinySpec("pressed")), threads=1)(lambda _: None).runner
    pages = (64 << 20) // runner.page_bytes
    runner.allocate(pages)
    before = rows(runner)
    for page in range(7, pages):
        runner.copy_page(5, page)
    full = resident()
    runner.drop_pages(range(pages))
    assert full - resident() > 48 << 20
    assert rows(runner) == before
    for wrong in ([-1], [pages], [3, 3]):
        with pytest.raises(ValueError, match="pages"):
            runner.drop_pages(wrong)
