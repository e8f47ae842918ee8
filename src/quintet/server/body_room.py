"""Memory for request bodies while they arrive, until they are parsed: bounded over all connections, and shared between callers.

A body is as large as its limit allows, connections are thousands, and a client may send as slowly as it likes. So room for the whole of a
large body is taken before any of it is read. Until there is, nothing is read, and TCP holds the client back. Whoever has room can always
complete its body, so nobody waits for one who waits.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass
from functools import cached_property

from quintet.errors import Overloaded
from quintet.keys.site import site

SMALL_BYTES = 64 * 1024
"""A body up to this size takes no room: what the HTTP server reads ahead is larger by one read (``listen/reads.py``)."""

MOST_BYTES = 128 * 1024 * 1024
"""Of all bodies; at least two of the largest."""

WAIT_S = 30.0
"""Seconds for which a body waits for room; as long as one that has it may take to arrive (``http.BODY_S``)."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A body that waits for room.

    Args:
        granted: done once it has its room.
    """

    hold: BodyHold
    size: int
    granted: asyncio.Future[None]


class BodyRoom:
    """
    Args:
        largest: bytes of a body.
    """

    def __init__(self, largest: int) -> None:
        self._most = max(MOST_BYTES, 2 * largest)
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Waiting]] = {}  # of each caller in the order in which they came; the callers take turns

    @property
    def held(self) -> int:
        """Bytes that are taken."""
        return self._held.total()

    async def take(self, hold: BodyHold, size: int) -> bool:
        """Wait until there is room. No caller has more than half of it, so one that takes all it can get leaves as much to others.

        Returns:
            Whether there is; not where the client left before. Clients that come and go again are no connections, and nothing else is
            a bound to how many of them wait.

        Raises:
            Overloaded: there was none for ``WAIT_S`` seconds.
        """
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(hold, size, granted)
        self._waiting.setdefault(hold.caller, deque()).append(waiting)
        self._grant()
        try:
            ends = {granted} if hold.left is None else {granted, hold.left}
            done, _ = await asyncio.wait(ends, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise Overloaded("The server holds as much of requests' bodies as it takes; try again later.")
            return granted.done()
        finally:
            if granted.cancel():
                self._give_up(waiting)

    def give(self, caller: str, size: int) -> None:
        """Give back what a caller's body had."""
        self._held[caller] -= size
        self._held += Counter()  # drops those with nothing
        self._grant()

    def _give_up(self, waiting: _Waiting) -> None:
        caller = waiting.hold.caller
        self._waiting[caller].remove(waiting)
        if not self._waiting[caller]:
            del self._waiting[caller]
        self._grant()  # it may have been in others' way

    def _grant(self) -> None:
        for caller in [*self._waiting]:
            queue = self._waiting.pop(caller)
            while queue:
                first = queue[0]
                if self._held[caller] + first.size > self._most // 2:
                    break
                if self.held + first.size > self._most:
                    self._waiting = {caller: queue, **self._waiting}  # its turn is next, however little others want
                    return
                self._held[caller] += first.size
                first.hold.size = first.size
                first.granted.set_result(None)
                queue.popleft()
            if queue:
                self._waiting[caller] = queue


class BodyHold:
    """What a request's body takes, from ``take`` until ``let_go``, of which the first counts.

    Args:
        whose: a key's id, or without keys an address.
        left: done when the client has left; ``None`` = that is not told.
    """

    def __init__(self, room: BodyRoom, whose: str, left: asyncio.Future[None] | None = None) -> None:
        self._room, self._whose, self.left = room, whose, left
        self.size = 0

    @cached_property
    def caller(self) -> str:
        """Who has a share of the room; few requests have bodies for which that is asked, and it takes some time."""
        return site(self._whose)

    async def take(self, size: int) -> bool:
        """Room for the whole body, if it is no small one and has none.

        Returns:
            See ``BodyRoom.take``.

        Raises:
            Overloaded: see ``BodyRoom.take``.
        """
        return size <= SMALL_BYTES or self.size > 0 or await self._room.take(self, size)

    def let_go(self) -> None:
        """The body is not needed any more."""
        size, self.size = self.size, 0
        if size:
            self._room.give(self.caller, size)
