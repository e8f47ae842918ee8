"""Every Python process that has this folder in its ``PYTHONPATH`` pauses at random where one thread, loop or file hands over to another.

``make test-jitter`` runs the tests so. What comes true a moment later than a test believed is seen at one of many runs, by whoever has
changed nothing; with pauses at these places it is seen at the next.
"""

from __future__ import annotations

import os
import random
import threading
import time
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

CHANCE = float(os.environ.get("QUINTET_TEST_JITTER", "0.2"))
"""Of a pause at a hand-over. An event loop's turns are many: of these a tenth as many."""

MEAN_S, MOST_S = 0.01, 0.1

_draw = random.Random(os.getpid() ^ time.time_ns())
_sleep = time.sleep  # some tests put another in its place


def pause(chance: float) -> None:
    """Now and then."""
    if _draw.random() < chance:
        _sleep(min(MOST_S, _draw.expovariate(1 / MEAN_S)))


def paused(owner: object, name: str, chance: float) -> None:
    """Before and after each call."""
    inner: Callable[..., Any] = getattr(owner, name)

    def call(*args: Any, **named: Any) -> Any:
        pause(chance)
        try:
            return inner(*args, **named)
        finally:
            pause(chance)

    setattr(owner, name, call)


paused(threading.Thread, "run", CHANCE)
paused(Future, "set_result", CHANCE)
paused(Future, "set_exception", CHANCE)
paused(BaseEventLoop, "call_soon_threadsafe", CHANCE / 2)
paused(BaseEventLoop, "_run_once", CHANCE / 20)
for _name in ("fsync", "replace", "kill"):
    paused(os, _name, CHANCE)
