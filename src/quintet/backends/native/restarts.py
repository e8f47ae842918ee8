"""When a dead engine is started again, and which requests it is not given any more. Plain code over values."""

from __future__ import annotations

AT_ONCE = 2
"""So many failed starts in a row are followed by another without a pause."""

GIVEN_UP = 4
"""After so many the engine counts as dead; it is tried on, slowly."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0

DEATHS = 2
"""A request that was computed at so many deaths of the engine is taken for their cause."""

BLOCKED_S = 600.0
"""For so long, and then it gets another chance: it may have been the victim of something else."""

_MOST_SUSPECTS = 4096


def pause(failures: int) -> float:
    """Seconds before the next start, after ``failures`` starts in a row that did not reach readiness."""
    return 0.0 if failures < AT_ONCE else min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures - AT_ONCE, 16))


class Suspects:
    """Requests, by a digest of what they ask for, that were being computed when the engine died.

    One that ends well afterwards is cleared: the death was not its doing.
    """

    def __init__(self) -> None:
        self._deaths: dict[bytes, tuple[int, float]] = {}  # digest -> deaths, time of the last

    def __len__(self) -> int:
        return len(self._deaths)

    def blame(self, digests: set[bytes], now: float) -> None:
        """The engine died at ``now`` (seconds) over these."""
        for digest in digests:
            deaths = self._count(digest, now) + 1
            self._deaths.pop(digest, None)  # the newest are at the end
            self._deaths[digest] = (deaths, now)
        while len(self._deaths) > _MOST_SUSPECTS:
            del self._deaths[next(iter(self._deaths))]

    def clear(self, digest: bytes) -> None:
        """It ended well."""
        if self._deaths.get(digest, (0, 0.0))[0] < DEATHS:
            self._deaths.pop(digest, None)

    def blocked(self, digest: bytes, now: float) -> bool:
        """It must not run."""
        return self._count(digest, now) >= DEATHS

    def _count(self, digest: bytes, now: float) -> int:
        deaths, last = self._deaths.get(digest, (0, 0.0))
        return deaths if now - last < BLOCKED_S else 0
