"""How soon it is worth coming back: what a client that is refused is told in ``Retry-After``. Plain code over values.

The rate at which sequences end is measured while there is work, as a mean in which what is older counts less. The time that the queue
before the caller needs is what has to end before its turn, over that rate. Everybody is told some more than that, by chance, so that
clients who were refused together do not come back together.
"""

from __future__ import annotations

import math
from collections.abc import Callable

LEAST_S = 1.0
MOST_S = 48.0
"""Longest time told, before the chance; with it, the 60 s up to which the providers' SDKs wait as they are told."""

SPREAD = 0.25
"""Most that is added by chance, as a share."""

LOAD_S = 5.0
"""A start's time before one was seen."""

_RECENT_S = 30.0
_FIRST_GUESS_S = 0.1  # a sequence's time before one has ended; outweighed by the first that do


class Pace:
    """Rate of one engine, over all lives of its worker.

    Args:
        now: seconds, monotonic; as everywhere here.
        chance: a random number from 0 to 1.
    """

    def __init__(self, now: float, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._seen, self._working = now, False
        self._ended = 0  # of those that had ended when it was last told
        self._ends, self._seconds = 1.0, _FIRST_GUESS_S  # weighed: what is older counts less
        self._began = now
        self.load_s = LOAD_S
        """Seconds that the last start took."""

    def see(self, now: float, ended: int, *, working: bool) -> None:
        """Take over how much was done.

        Args:
            ended: sequences that have ended by now, in all.
            working: there are others.
        """
        if self._working:  # what passes without work tells nothing
            keep = math.exp(-(now - self._seen) / _RECENT_S)
            self._ends = self._ends * keep + ended - self._ended
            self._seconds = self._seconds * keep + _RECENT_S * (1 - keep)
        self._seen, self._ended, self._working = now, ended, working

    def begin(self, now: float) -> None:
        """A start begins now."""
        self._began = now

    def ready(self, now: float) -> None:
        """It has ended well."""
        self.load_s = now - self._began

    def until_done(self, sequences: int) -> float:
        """Seconds until so many more have ended."""
        return max(0, sequences) * self._seconds / max(self._ends, 1e-3)

    def until_ready(self, now: float, start: float | None, progress: float) -> float:
        """Seconds until a start has ended.

        Args:
            start: when it will begin; ``None`` = it has begun.
            progress: share of it that is done, 0 to 1.
        """
        if start is not None:
            return max(0.0, start - now) + self.load_s
        elapsed = now - self._began
        return elapsed * (1 / progress - 1) if progress > 0 else max(0.0, self.load_s - elapsed)

    def told(self, seconds: float) -> float:
        """What a client is told for ``seconds``."""
        return min(max(seconds, LEAST_S), MOST_S) * (1 + SPREAD * self._chance())
