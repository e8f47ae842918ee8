"""A thread that can be left to what it does. Work of the guides' library may take seconds, and cannot be broken off."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

NICE = 10
"""Of a thread that was left: a tenth of what others get. Not less, as it holds the interpreter's lock now and then."""

T = TypeVar("T")


class Lane:
    """Does pieces of work in turn, in a thread that is there once it is needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do it after all that was submitted before and is still this lane's."""
        self._pool = self._pool or ThreadPoolExecutor(1, self._name)
        return self._pool.submit(work)

    def leave(self, thread: int) -> None:
        """What runs keeps its thread, of that number, which ends with it; another thread does what comes."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
        self._pool = None
        lower(thread)


def lower(thread: int) -> None:
    """Let a thread run less than others; 0 = none. Linux has a priority for each; nobody can take that back."""
    if sys.platform == "linux" and thread:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, NICE)
