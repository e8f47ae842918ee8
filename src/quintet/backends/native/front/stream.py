"""One request's events on their way to whoever iterates over them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from quintet.events import Blame, Finish, TokenEvent


class Stream:
    """Async iterator over batches of events; ends after every sequence's terminal event. Used on one event loop.

    Args:
        count: sequences of the request.
    """

    def __init__(self, count: int) -> None:
        self._batches: deque[Sequence[TokenEvent]] = deque()
        self._open = set(range(count))
        self._given_up = False
        self.waiting = 0
        """Log-probabilities, and tokens, that nobody has iterated over yet."""
        self._waiter: asyncio.Future[None] | None = None
        self.delivered = False
        """Whoever iterates may have seen something."""

    @property
    def open(self) -> int:
        """Sequences that have not ended."""
        return len(self._open)

    def push(self, events: Sequence[TokenEvent]) -> int:
        """Add the next events; returns how many sequences they end."""
        self.delivered = True
        if not self._given_up:
            self._batches.append(events)
            self.waiting += _size(events)
        before = len(self._open)
        for event in events:
            if event.finish is not None:
                self._open.discard(event.seq)
        self._wake()
        return before - len(self._open)

    def end(self, finish: Finish, error: str = "") -> None:
        """End every sequence that has not ended."""
        if self._open:
            self.push(self.rest(finish, error))

    def rest(self, finish: Finish, error: str = "") -> Sequence[TokenEvent]:
        """What ends every sequence that has not ended."""
        return [TokenEvent(seq, -1, finish=finish, error=error) for seq in sorted(self._open)]

    def give_up(self, error: str) -> None:
        """Forget what waits, and whatever comes; all that is still to be told is that each sequence failed."""
        untold = self._open.union(event.seq for events in self._batches for event in events if event.finish is not None)
        self._batches.clear()
        self.waiting, self._given_up = 0, True
        self._batches.append([TokenEvent(seq, -1, finish=Finish.ERROR, error=error, blame=Blame.LOAD) for seq in sorted(untold)])
        self._wake()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Sequence[TokenEvent]:
        while not self._batches:
            if not self._open or self._given_up:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        events = self._batches.popleft()
        self.waiting -= 0 if self._given_up else _size(events)
        return events

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _size(events: Sequence[TokenEvent]) -> int:
    size = len(events)
    for event in events:  # twice for every step and stream: half of what a generator takes
        size += len(event.top)
    return size
