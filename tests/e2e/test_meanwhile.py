"""What the caller of a pass does while the other threads compute it: never a part of what they compute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.paged import LoadRunner, assert_same_bits
from tests.reference.tiny_model import FAMILIES, TinySpec

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.runner import NativeRunner
from quintet.backends.native.core.types import Batch, Runner

TOKENS = 2 * PAGE


@pytest.fixture(params=[1, 2, 3])
def runner(request: pytest.FixtureRequest, load_runner: LoadRunner, tiny_path: Callable[[TinySpec], Path]) -> Runner:
    return load_runner(tiny_path(FAMILIES[0]), request.param)


def batch(page: int, token: int = 5) -> Batch:
    tokens, rows = np.arange(token, token + TOKENS, dtype=np.int32), np.arange(TOKENS, dtype=np.int32)
    tables = np.array([[page, page + 1]], np.int32)
    return Batch(tokens, np.array([TOKENS], np.int32), np.zeros(1, np.int32), tables, rows)


def test_it_is_done_once_by_the_caller_and_changes_nothing(runner: Runner) -> None:
    called: list[int] = []
    plain = runner.forward(batch(0))
    assert_same_bits(runner.forward(batch(2), lambda: called.append(threading.get_ident())), plain)
    assert called == [threading.get_ident()]
    assert_same_bits(runner.read_page(2), runner.read_page(0))


def test_the_other_threads_compute_without_the_caller(load_runner: LoadRunner, tiny_path: Callable[[TinySpec], Path]) -> None:
    runner = load_runner(tiny_path(FAMILIES[0]), 2)
    rows = runner.forward(batch(0))
    done = runner.read_page(1)
    runner.drop_pages([2, 3])
    seen = 0

    def watch() -> None:
        nonlocal seen
        for _ in range(10_000):
            if seen := int((runner.read_page(3) == done).all()):
                return
            time.sleep(0.001)

    assert_same_bits(runner.forward(batch(2), watch), rows)
    assert seen, "all layers' keys and values were there before the caller took part"


def test_what_it_raises_comes_after_the_pass_and_a_pass_that_cannot_be_has_none(runner: Runner) -> None:
    plain = runner.forward(batch(0))

    def fails() -> None:
        raise KeyError("of the caller's own")

    runner.drop_pages([2, 3])
    with pytest.raises(KeyError, match="of the caller's own"):
        runner.forward(batch(2), fails)
    assert_same_bits(runner.read_page(3), runner.read_page(1))
    with pytest.raises(ValueError, match="token id out of range"):
        runner.forward(batch(2, token=runner.vocab), fails)
    assert_same_bits(runner.forward(batch(2)), plain)


def test_another_thread_that_asks_for_the_cpu_waits_and_holds_up_nobody(runner: Runner) -> None:
    assert isinstance(runner, NativeRunner)
    counted: list[object] = []

    def count() -> None:
        runner.cpu.begin_counting()
        counted.append(runner.cpu.end_counting())

    other = threading.Thread(target=count)

    def begin() -> None:
        other.start()
        other.join(0.05)
        assert other.is_alive() and not counted

    runner.forward(batch(0), begin)
    other.join(10)
    assert len(counted) == 1
