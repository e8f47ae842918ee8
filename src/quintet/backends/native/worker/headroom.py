"""Memory for pages of the KV cache that nobody has used yet, had before it is needed, while there is nothing else to do.

The system finds and clears memory when it is first written: within a step, and on a virtual machine whose host must find it too, that is
a tenth of the time of 32 streams (docs/decisions/0069-memory-ahead.md). What is had ahead grows with what was used. A server that nobody
uses has none, and one whose memory is scarce gives it back and has none from then on.
"""

from __future__ import annotations

from collections.abc import Callable

from quintet.backends.native.core.types import Runner
from quintet.backends.native.schedule.pages import PagePool
from quintet.machine import memory_available

AHEAD = 8
"""Times the pages that were ever used, at most."""

SHARE = 8
"""One of so many pages of the cache, at most."""

MOST_BYTES = 256 << 20
"""At most. Any step is done sooner than it would take to use that much."""

OF_FREE = 8
"""At most one of so many bytes that can still be had of the machine's memory, or of the container's."""

PIECE_BYTES = 4 << 20
"""At a time: some huge pages, by all threads. Whoever comes waits for no more than that, 0.2 to 5 ms with two."""


class Headroom:
    """Pages are taken from a pool in the order of their numbers; those that come next are made ready.

    Args:
        free: bytes of memory that can be had.
    """

    def __init__(self, runner: Runner, pool: PagePool, free: Callable[[], int] = memory_available) -> None:
        self._runner = runner
        self._pool = pool
        self._free = free
        self._most = min(pool.total // SHARE, MOST_BYTES // runner.page_bytes)
        self._piece = max(1, PIECE_BYTES // runner.page_bytes)
        self._ready = 0  # pages below this have their memory
        self._scarce = False

    def more(self) -> bool:
        """Make a piece ready; whether there was one to make."""
        used = self._pool.ever_used
        first, end = max(self._ready, used), min(used + min(AHEAD * used, self._most), self._pool.total)
        if self._scarce or first >= end or self._free() < OF_FREE * (end - first) * self._runner.page_bytes:
            return False
        self._ready = min(first + self._piece, end)
        self._runner.touch_pages(first, self._ready)
        return True

    def shed(self) -> range:
        """Memory is scarce: what is to be dropped. Nothing is made ready from now on."""
        ahead, self._ready, self._scarce = range(self._pool.ever_used, self._ready), 0, True
        return ahead
