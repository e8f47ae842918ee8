"""When a worker hangs: it is judged by its progress, never by an open port. Plain code over values."""

from __future__ import annotations

STALL_S = 10.0
"""Work waits and no step finished for so long: the engine hangs."""

SLOW_STEPS = 4
"""Or for so many of its longest steps, estimated or seen, if that is more: a large model on a small machine is slow, and not stuck."""

LOAD_STALL_S = 30.0
"""A restart that says nothing for so long hangs too. The first start is its user's to watch."""

_LOOKS = 20  # looks at a hang per stall time


class Watchdog:
    """How long nothing has moved, by the front's clock.

    Args:
        now: seconds, monotonic; as everywhere here.
        least_s: see ``STALL_S``.
    """

    def __init__(self, now: float, least_s: float = STALL_S) -> None:
        self._moved = self._looked = now
        self.stall_s = self._least_s = least_s

    @property
    def pause_s(self) -> float:
        """Seconds between two looks."""
        return self.stall_s / _LOOKS

    def moved(self, now: float) -> None:
        """Something happened, or from now on something should."""
        self._moved = now

    def stepped(self, now: float) -> None:
        """A step was finished, and has shown how long one may take."""
        self.stall_s = max(self.stall_s, SLOW_STEPS * (now - self._moved))
        self._moved = now

    def ready(self, now: float, step_s: float) -> None:
        """A worker is ready, whose largest step may take ``step_s`` seconds; 0 = not measured."""
        self.stall_s = max(self._least_s, SLOW_STEPS * step_s)
        self._moved = now

    def watch(self, now: float) -> None:
        """The next look is after ``pause_s``."""
        self._looked = now

    def look(self, now: float) -> None:
        """Look. One that is much too late tells that it is this process that stood still: what the worker sent meanwhile is unread."""
        if now - self._looked > self.stall_s / 2:
            self._moved = now

    def still(self, now: float) -> float:
        """Seconds since something moved."""
        return now - self._moved

    def stalled(self, now: float) -> bool:
        """That is too long for a worker with something to do."""
        return self.still(now) > self.stall_s
