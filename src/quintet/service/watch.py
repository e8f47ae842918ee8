"""When what happened to a request. Plain code over values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quintet.events import Timing, TokenEvent


class Watch:
    """Takes a request's times.

    Args:
        clock: seconds, monotonic; the request arrives now.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._arrived = self._submitted = self._last = clock()
        self._queue: float | None = None
        self._first: float | None = None

    def submit(self) -> None:
        """The backend has the request now."""
        self._submitted = self._clock()

    def saw(self, batch: Sequence[TokenEvent]) -> None:
        """The backend's next events."""
        self._last = self._clock()
        if self._queue is None and batch:
            self._queue = batch[0].waited
        if self._first is None and any(event.token >= 0 and not event.prompt for event in batch):
            self._first = self._last

    @property
    def generating(self) -> float:
        """Seconds since the first generated token."""
        return 0.0 if self._first is None else self._last - self._first

    def timing(self) -> Timing:
        """See ``Timing``. Without a generated token the prompt took all the time there was."""
        queue = self._queue or 0.0
        first = self._last if self._first is None else self._first
        return Timing(queue, max(0.0, first - self._submitted - queue), self._last - first, self._last - self._arrived)
