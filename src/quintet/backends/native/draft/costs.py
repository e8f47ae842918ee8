"""What steps cost by their rows, as measured lately. Plain code over values: who has a clock tells it.

A step of few rows costs little more than one of a single row, as the weights are read once for all of them. How much more differs by model
and machine, and decides how far to draft. So it is measured, in classes of rows, each with the average of what was lately seen::

    rows      1 | 2 | 3 | 4 | 5-6 | 7-8 | 9-12 | 13-16 | ...
    seconds   .044      .051  .058          .074               between them straight lines, beyond them as FREE_ROWS tells
"""

from __future__ import annotations

from bisect import bisect_left

from quintet.backends.native.draft.drafter import FREE_ROWS

RATE = 0.2
"""What the last step counts against all before it, once there are some."""

HIGHEST = 3.0
"""A step that takes so many times what is known counts as that: something else had the machine."""

_BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class Costs:
    """Seconds of a step of one model, by the rows that it computes."""

    def __init__(self) -> None:
        self._points: dict[int, tuple[float, float, int]] = {}  # class -> mean rows, mean seconds, steps seen
        self._steps = 0
        self._last: dict[int, int] = {}  # class -> the step at which it was seen last

    def __bool__(self) -> bool:
        return bool(self._points)

    def learn(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        self._steps += 1
        place = bisect_left(_BOUNDS, rows)
        self._last[place] = self._steps
        mean_rows, mean, seen = self._points.get(place, (0.0, 0.0, 0))
        weight = max(RATE, 1 / (seen + 1))
        if seen:
            seconds = min(seconds, HIGHEST * mean)
        self._points[place] = mean_rows + (rows - mean_rows) * weight, mean + (seconds - mean) * weight, seen + 1

    def age(self, rows: int) -> int:
        """Steps since one of about so many rows was seen; all of them if none was."""
        return self._steps - self._last.get(bisect_left(_BOUNDS, rows), 0)

    def of(self, rows: float) -> float:
        """Seconds of a step of so many rows; 0 as long as nothing was learnt."""
        points = sorted(self._points.values())
        if not points:
            return 0.0
        place = next((at for at, point in enumerate(points) if point[0] >= rows), len(points))
        if 0 < place < len(points):
            (low, before, _), (high, after, _) = points[place - 1], points[place]
            return before + (after - before) * (rows - low) / (high - low)
        known, seconds, _ = points[min(place, len(points) - 1)]
        slope = seconds / (known + FREE_ROWS)
        if place and len(points) > 1:  # beyond the last: as from the one before it
            low, before, _ = points[-2]
            slope = max(0.0, (seconds - before) / (known - low))
        return seconds + (rows - known) * slope

    def row(self, rows: int, more: int = 8) -> float:
        """Seconds of one row more than so many, at least 0; over the next few, as single differences are lost in what is measured."""
        return max(0.0, (self.of(rows + more) - self.of(rows)) / more)
