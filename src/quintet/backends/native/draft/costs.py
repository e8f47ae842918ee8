"""What steps cost by their rows, as measured lately. Plain code over values: who has a clock tells it.

A step of few rows costs little more than one of a single row, as the weights are read once for all of them. How much more differs by model
and machine, and decides how far to draft. So it is measured, in classes of rows, each with the average of what was lately seen::

    rows      1 | 2 | 3 | 4 | 5-6 | 7-8 | 9-12 | 13-16 | ...
    seconds   .044      .051  .058          .074               between them straight lines, beyond them as FREE_ROWS tells
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from quintet.backends.native.draft.drafter import FREE_ROWS

RATE = 0.2
"""What the last step counts against all before it, once there are some."""

HIGHEST = 3.0
"""A step that takes so many times what is known counts as that: something else had the machine."""

_BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class _Average(NamedTuple):
    """What was seen of a class of steps.

    Args:
        rows, seconds: means, in which later steps count more.
        steps: how many there were.
    """

    rows: float
    seconds: float
    steps: int


class Costs:
    """Seconds of a step of one model, by the rows that it computes."""

    def __init__(self) -> None:
        self._averages: dict[int, _Average] = {}  # by the class of a step, its place in ``_BOUNDS``
        self._steps = 0
        self._last: dict[int, int] = {}  # class -> the step at which it was seen last

    def __bool__(self) -> bool:
        return bool(self._averages)

    def learn(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        self._steps += 1
        place = bisect_left(_BOUNDS, rows)
        self._last[place] = self._steps
        known = self._averages.get(place)
        if known is None:
            self._averages[place] = _Average(rows, seconds, 1)
            return
        seconds = min(seconds, HIGHEST * known.seconds)
        weight = max(RATE, 1 / (known.steps + 1))
        self._averages[place] = _Average(
            known.rows + (rows - known.rows) * weight, known.seconds + (seconds - known.seconds) * weight, known.steps + 1
        )

    def age(self, rows: int) -> int:
        """Steps since one of about so many rows was seen; all of them if none was."""
        return self._steps - self._last.get(bisect_left(_BOUNDS, rows), 0)

    def of(self, rows: float) -> float:
        """Seconds of a step of so many rows; 0 as long as nothing was learnt."""
        points = sorted(self._averages.values())
        if not points:
            return 0.0
        place = next((at for at, point in enumerate(points) if point.rows >= rows), len(points))
        if 0 < place < len(points):
            low, high = points[place - 1], points[place]
            return low.seconds + (high.seconds - low.seconds) * (rows - low.rows) / (high.rows - low.rows)
        nearest = points[min(place, len(points) - 1)]
        slope = nearest.seconds / (nearest.rows + FREE_ROWS)
        if place and len(points) > 1:  # beyond the last: as from the one before it
            before = points[-2]
            slope = max(0.0, (nearest.seconds - before.seconds) / (nearest.rows - before.rows))
        return nearest.seconds + (rows - nearest.rows) * slope

    def row(self, rows: int, more: int = 8) -> float:
        """Seconds of one row more than so many, at least 0; over the next few, as single differences are lost in what is measured."""
        return max(0.0, (self.of(rows + more) - self.of(rows)) / more)
