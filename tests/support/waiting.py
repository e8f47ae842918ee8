"""Waiting for what comes about in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(holds: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until it holds.

    Raises:
        AssertionError: it did not for so long.
    """
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.01)
