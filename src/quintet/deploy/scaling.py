"""How many replicas there are to be, by the work that waits. Plain code over values."""

from __future__ import annotations

from dataclasses import dataclass

FILL = 0.7
"""A replica goes only if the others can then run what there is in so much of their places; else it would be wanted again at once."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """
    Args:
        least, most: replicas.
        up_after: seconds for which sequences must have waited for a place before there are more.
        down_after: seconds for which there must have been too little to do before there is one less.
    """

    least: int = 1
    most: int = 1
    up_after: float = 5.0
    down_after: float = 300.0


class Scaler:
    """Says how many replicas there are to be, from what it was told of them each time.

    Args:
        places: sequences that a replica runs at once.
    """

    def __init__(self, sizing: Sizing, places: int) -> None:
        self._sizing, self._places = sizing, places
        self._short: float | None = None  # since when there are too few
        self._idle: float | None = None  # since when there is one too many

    def wanted(self, now: float, replicas: int, coming: int, waiting: int, live: int) -> int:
        """How many there are to be.

        Args:
            now: seconds, monotonic.
            replicas: that there are, with those on their way.
            coming: of these, those on their way.
            waiting: sequences that wait for a place in a replica.
            live: all that have not ended.
        """
        sizing = self._sizing
        needed = -(-live // self._places)  # replicas in which all have a place
        lacking = waiting > 0 and not coming and replicas < sizing.most
        spare = not waiting and replicas > sizing.least and live <= FILL * self._places * (replicas - 1)
        if not lacking:
            self._short = None
        elif self._short is None:
            self._short = now
        if not spare:
            self._idle = None
        elif self._idle is None:
            self._idle = now
        if self._short is not None and now - self._short >= sizing.up_after:
            self._short = None
            return min(sizing.most, max(replicas + 1, needed))
        if self._idle is not None and now - self._idle >= sizing.down_after:
            self._idle = None
            return replicas - 1
        return max(replicas, sizing.least)
