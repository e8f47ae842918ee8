"""What an engine has done and is doing, over the lives of all its workers. Plain code over values."""

from __future__ import annotations

from bisect import bisect_left
from operator import add

from quintet.backends.base import BATCH_TOKENS, Counts, Health, Pages, State
from quintet.backends.native.wire.messages import Stepped


class Statistics:
    """Counts only ever rise: a worker counts from its own start, and what those before it did is added."""

    def __init__(self) -> None:
        self._counts = self._past = Counts()  # of the worker that runs; of those before it
        self._pages = Pages()
        self._running = self._waiting = self._deferred = 0
        self._batches = [0] * (len(BATCH_TOKENS) + 1)

    def update(self, message: Stepped) -> bool:
        """Take over what a worker says; True if it has finished a step since it last said something."""
        before, self._counts = self._counts, message.counts
        self._running, self._waiting, self._deferred, self._pages = message.running, message.waiting, message.deferred, message.pages
        steps = message.counts.steps - before.steps
        if steps <= 0:
            return False
        # Steps that are told together only decode, and are of one size but for a sequence that ended.
        self._batches[bisect_left(BATCH_TOKENS, (message.counts.tokens - before.tokens) / steps)] += steps
        return True

    def died(self) -> None:
        """The worker is gone, and its memory with it."""
        self._past, self._counts, self._pages = self._sum(), Counts(), Pages()
        self.idle()

    def idle(self) -> None:
        """Everything was ended."""
        self._running = self._waiting = self._deferred = 0

    def health(self, state: State, progress: float) -> Health:
        """All of it, with what the supervisor knows."""
        batches = tuple(self._batches)
        return Health(state, progress, self._running, self._waiting, self._sum(), self._pages, batches, deferred=self._deferred)

    def _sum(self) -> Counts:
        return Counts(*map(add, self._past, self._counts))
