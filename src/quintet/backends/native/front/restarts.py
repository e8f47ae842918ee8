"""When a dead engine is started again, and which requests it is not given any more. Plain code over values."""

from __future__ import annotations

from collections.abc import Mapping

AT_ONCE = 2
"""So many failed starts in a row are followed by another without a pause."""

GIVEN_UP = 4
"""After so many the engine counts as dead; it is tried on, slowly."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0

BLOCKED_AT = 2.0
"""A request with so much blame is taken for the cause."""

BLAME, LESS_BLAME = 1.0, 0.5
"""For being computed when the engine died: before its first token, and later, when it had been computed for a while without harm."""

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
        self._blame: dict[bytes, tuple[float, float]] = {}  # digest -> blame, time of the last death

    def __len__(self) -> int:
        return len(self._blame)

    def blame(self, shares: Mapping[bytes, float], now: float) -> None:
        """The engine died at ``now`` (seconds) over these."""
        for digest, share in shares.items():
            total = self._of(digest, now) + share
            self._blame.pop(digest, None)  # the newest are at the end
            self._blame[digest] = (total, now)
        while len(self._blame) > _MOST_SUSPECTS:
            del self._blame[next(iter(self._blame))]

    def clear(self, digest: bytes) -> None:
        """It ended well."""
        self._blame.pop(digest, None)

    def suspected(self, digest: bytes, now: float) -> bool:
        """It must not run beside another suspect, or nobody could tell them apart."""
        return self._of(digest, now) > 0

    def blocked(self, digest: bytes, now: float) -> bool:
        """It must not run."""
        return self._of(digest, now) >= BLOCKED_AT

    def _of(self, digest: bytes, now: float) -> float:
        blame, last = self._blame.get(digest, (0.0, 0.0))
        return blame if now - last < BLOCKED_S else 0.0
