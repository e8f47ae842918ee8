"""Turns at something of which there is little: each tenant has a line, and the lines take turns. Of the event loop; no clock."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque


class Turns:
    """A semaphore that is fair between tenants, where ``asyncio``'s own is fair between tasks.

    Args:
        at_once: how many may hold it.
    """

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # whose turn is next, first

    async def acquire(self, tenant: str) -> None:
        """Wait for a turn, behind those of the same tenant; ``release`` ends it."""
        if self._free:  # then nobody waits
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came just now, and is somebody else's
                self.release()
            raise

    def release(self) -> None:
        """A turn ends: the next in the line whose turn it is begins."""
        while self._lines:
            tenant, line = self._lines.popitem(last=False)
            waiting = deque(turn for turn in line if not turn.cancelled())  # who gave up is still in line
            if waiting:
                waiting.popleft().set_result(None)
                if waiting:
                    self._lines[tenant] = waiting  # at the end
                return
        self._free += 1
