"""What an engine does when the machine, or its container, runs short of memory: first it keeps nothing, then it takes nothing new.

::

    memory that can still be had     what is done
    up to KEEP                       the worker gives back what it keeps for requests to come: cached pages, compiled guides
    up to TAKE                       new requests are refused, until there is more again; what runs goes on

After that the system ends a process, which is a death like any other. Envoy's overload manager has such grades, at 92 and 95 % of its heap;
of a large machine a per cent is much, so each grade has a bound in bytes too. Plain code over values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LOOK_S = 2.0
"""Between two looks: they read some files of the system."""

AGAIN_S = 10.0
"""What is kept anew meanwhile is given back no sooner."""


@dataclass(frozen=True, slots=True)
class Grade:
    """How little is too little: a share of all there is, and never more than so many bytes."""

    share: float
    most: int

    def reached(self, free: int, total: int) -> bool:
        """So it is."""
        return free <= min(self.share * total, self.most)


KEEP = Grade(0.08, 1 << 30)
TAKE = Grade(0.05, 1 << 29)
TAKE_AGAIN = Grade(0.06, 3 << 28)
"""Not the same as ``TAKE``, so that an engine does not open and close with every request."""


class Pressure:
    """What is to be done now.

    Args:
        memory: bytes that can still be had, and all there are.
    """

    def __init__(self, memory: Callable[[], tuple[int, int]]) -> None:
        self._memory = memory
        self._looked = self._shed_at = float("-inf")
        self.short = False
        """Nothing new is taken."""
        self.usage = 0.0
        """Share of the memory that is in use."""

    def look(self, now: float) -> bool:
        """Look, at ``now`` (seconds), if it is time; True: what is kept is to be given back."""
        if now - self._looked < LOOK_S:
            return False
        self._looked = now
        free, total = self._memory()
        self.usage = 1 - free / total
        self.short = (TAKE_AGAIN if self.short else TAKE).reached(free, total)
        if not KEEP.reached(free, total) or now - self._shed_at < AGAIN_S:
            return False
        self._shed_at = now
        return True
