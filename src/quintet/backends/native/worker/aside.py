"""What a guide allows further on, asked in a thread beside the worker's, which waits for a moment and no longer. A draft is worth that.

It takes hundredths of a millisecond, and of an ambiguous grammar seconds, though the masks of the sequence itself are quick: it looks at
places to which the text has not come. And it cannot be broken off. So whoever is late has its thread left to it, and is not asked again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from quintet.backends.native.draft.jump_forward import MOST_BYTES, JumpForward
from quintet.backends.native.draft.thinking_budget import ThinkingBudget
from quintet.backends.native.schedule.sequence import Sequence
from quintet.backends.native.worker.lane import Lane
from quintet.backends.native.worker.masks import SLOW_S
from quintet.guides.matcher import Compiler, Matcher

WAIT_S = 0.02
"""What a step waits for one sequence's: a machine that is busy gives a thread its turn within that, mostly."""

WALK_S = 0.002
"""Processor time after which a guess goes no further: half of the shortest step."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Aside:
    """A thread, and another one once that is late."""

    def __init__(self) -> None:
        self._lane = Lane("quintet-ahead")

    def ask(self, work: Callable[[], T]) -> tuple[T, float] | None:
        """What it comes to, and the processor time that it took, in seconds; ``None``: it broke, or is late."""
        thread: list[int] = []

        def run() -> tuple[T, float] | None:
            thread.append(threading.get_native_id())
            begin = time.thread_time()
            try:
                return work(), time.thread_time() - begin
            except BaseException:  # a panic of the library is no ``Exception``
                _log.exception("a guide broke where it was asked what comes later; it is not asked again")
                return None

        try:
            return self._lane.submit(run).result(WAIT_S)
        except TimeoutError:
            self._lane.leave(thread[0] if thread else 0)
            return None


class Jumping:
    """What the guides of sequences make likely; used in the worker's thread."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._jump_forward: JumpForward | None = None  # made for the first guide, as guides are
        self._aside = Aside()

    def guess(self, seq: Sequence) -> list[int]:
        """Tokens that are likely after those that were generated; none once that took long to know."""
        matcher = seq.matcher
        if matcher is None or not seq.foreseen:
            return []
        if not all(matcher.consume(token) for token in seq.generated[matcher.consumed :]):
            return []
        self._jump_forward = self._jump_forward or JumpForward(self._compiler)
        if not self._jump_forward.begins(matcher, seq.generated):
            return []
        walk = partial(self._walk, self._jump_forward, matcher.copy(), seq.generated[-MOST_BYTES:])
        found = self._aside.ask(walk)
        seq.foreseen = found is not None and found[1] <= SLOW_S
        return found[0] if found else []

    def _walk(self, jump_forward: JumpForward, ahead: Matcher | ThinkingBudget, output: list[int]) -> list[int]:
        end = time.thread_time() + WALK_S
        return jump_forward.guess(ahead, output, lambda: time.thread_time() < end)
