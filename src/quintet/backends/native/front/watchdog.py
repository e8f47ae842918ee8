"""When a worker hangs: it is judged by its progress, never by an open port. Plain code over values.

One that has nothing to do is asked now and then, and its answer is progress too. How long it may be still follows its longest steps of the
last minutes, and falls again when these are over: a machine that was busy once is not waited for ever after.
"""

from __future__ import annotations

from quintet.backends.native.front.pressure import LOOK_S

STALL_S = 10.0
"""Work waits and no step finished for so long, or a question went unanswered: the engine hangs."""

DRAIN_STALL_S = 3.0
"""The same while the server wants to end: that is to take no more than five seconds, with what comes after, where nothing moves."""

SLOW_STEPS = 4
"""Or for so many of its longest steps, estimated or seen, if that is more: a large model on a small machine is slow, and not stuck. It is
estimated rather too long, so that once is enough while the server wants to end; and one without work has no step that could be long."""

RECENT_S = 60.0
"""For how long a step's time counts, at least; at most twice as long."""

LOAD_STALL_S = 30.0
"""A start that says nothing for so long hangs too, but for a first one that its user watches."""

_LOOKS = 20  # looks at a hang per stall time
_QUESTIONS = 5  # questions to an idle worker per stall time; a look each


class Watchdog:
    """How long nothing has moved, by the front's clock.

    Args:
        now: seconds, monotonic; as everywhere here.
        least_s: see ``STALL_S``.
    """

    def __init__(self, now: float, least_s: float = STALL_S) -> None:
        self._moved = self._due = self._turned = now
        self._least_s, self._estimates = least_s, SLOW_STEPS
        self._estimate = self._longest = self._before = 0.0  # seconds of a step: told by the worker, seen lately, seen before that

    @property
    def stall_s(self) -> float:
        """Seconds without progress that are too many while there is work."""
        return max(self._least_s, self._estimates * self._estimate, SLOW_STEPS * max(self._longest, self._before))

    def pause_s(self, *, idle: bool) -> float:
        """Seconds between two looks, at which the memory is looked at too."""
        return min(LOOK_S, self._least_s / _QUESTIONS if idle else self.stall_s / _LOOKS)

    def hurry(self) -> None:
        """From now on ``DRAIN_STALL_S`` counts, if it is less."""
        self._least_s, self._estimates = min(self._least_s, DRAIN_STALL_S), 1

    def moved(self, now: float) -> None:
        """Something happened, or from now on something should."""
        self._moved = now

    def stepped(self, now: float) -> None:
        """A step was finished, and has shown how long one may take."""
        self._turn(now)
        self._longest = max(self._longest, now - self._moved)
        self._moved = now

    def ready(self, now: float, step_s: float) -> None:
        """A worker is ready, whose largest step may take ``step_s`` seconds; 0 = not measured."""
        self._estimate, self._longest, self._before = step_s, 0.0, 0.0
        self._moved = self._turned = now

    def watch(self, now: float, pause_s: float) -> None:
        """The next look is to be so much later."""
        self._due = now + pause_s

    def look(self, now: float) -> None:
        """Look. One that is much too late tells that it is this process that stood still: what the worker sent meanwhile is unread."""
        self._turn(now)
        if now - self._due > self._least_s / 2:
            self._moved = now

    def still(self, now: float) -> float:
        """Seconds since something moved."""
        return now - self._moved

    def stalled(self, now: float, *, idle: bool) -> bool:
        """That is too long, with work or without."""
        return self.still(now) > (self._least_s if idle else self.stall_s)

    def _turn(self, now: float) -> None:
        """Forget what is too long ago."""
        if now - self._turned >= RECENT_S:
            self._before = self._longest if now - self._turned < 2 * RECENT_S else 0.0
            self._longest, self._turned = 0.0, now
