"""Waiting until an engine has room, for what was begun: to refuse it then would lose what was computed, and what its client has of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from quintet.backends.base import Backend, State
from quintet.errors import Overloaded, TooManyRequests

T = TypeVar("T")

LOOK_S = 0.05
"""Seconds from one look for room to the next."""


async def until_room(backend: Backend, attempt: Callable[[], Awaitable[T]]) -> T:
    """What an attempt comes to that finds room. That room is there until the event loop gets its turn.

    Args:
        attempt: asks ``Backend.require_room`` last.

    Raises:
        Overloaded, TooManyRequests: there is no room, and the engine is dead or closed: nothing is left to wait for.
    """
    while True:
        try:
            return await attempt()
        except (Overloaded, TooManyRequests):  # the queue is full, or the tenant's share of it; or the engine is being started again
            if backend.health().state in (State.DEAD, State.CLOSED):
                raise
        await asyncio.sleep(LOOK_S)
