"""What the ledger counts of itself. Plain code over values."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Of the histogram of the times that commits took, in seconds."""


@dataclass(slots=True)
class Stats:
    """Counters since the start.

    Args:
        written: rows that were closed and are on the disk.
        spooled: requests that were served while their row was only in memory.
        refused: requests that were refused because their row could not be written.
        lost: times that the file was found deleted, or replaced by another.
        seconds: of all commits together.
        commits: by ``BOUNDS``, and beyond the last.
    """

    written: int = 0
    spooled: int = 0
    refused: int = 0
    lost: int = 0
    seconds: float = 0.0
    commits: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))

    def wrote(self, seconds: float, closed: int) -> None:
        """A commit, with so many rows that are closed."""
        self.written += closed
        self.seconds += seconds
        self.commits[bisect_left(BOUNDS, seconds)] += 1
