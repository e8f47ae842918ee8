"""Work that would hold the event loop up, in a thread: one piece at a time, and tenants take turns.

One at a time, because threads share the interpreter: with each that computes, the event loop waits longer for its turn. Tenants in turn,
because one who sends a hundred long texts must not keep another's waiting for all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class FairExecutor:
    """Runs functions in a thread, for whoever awaits them. Used on one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[Callable[[], Any], asyncio.Future[Any]]]] = {}  # by tenant, the next one's turn first
        self._busy = False

    async def run(self, tenant: str, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises. Whoever is cancelled while it waits does not have it run."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append((work, future))
        self._next()
        return await future

    def _next(self) -> None:
        while not self._busy and self._waiting:
            tenant, queue = next(iter(self._waiting.items()))
            work, future = queue.popleft()
            del self._waiting[tenant]
            if queue:
                self._waiting[tenant] = queue  # behind the others
            if not future.done():
                self._busy = True
                running = asyncio.get_running_loop().run_in_executor(None, work)
                running.add_done_callback(lambda done, future=future: self._done(done, future))  # type: ignore[misc]

    def _done(self, running: asyncio.Future[Any], future: asyncio.Future[Any]) -> None:
        self._busy = False
        error = None if running.cancelled() else running.exception()
        if not future.done():
            if running.cancelled():
                future.cancel()
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(running.result())
        self._next()
