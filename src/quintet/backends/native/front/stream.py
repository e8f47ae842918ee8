"""One request's events on their way to whoever iterates over them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from quintet.events import Finish, TokenEvent


class Stream:
    """Async iterator over batches of events; ends after every sequence's terminal event. Used on one event loop.

    Args:
        count: sequences of the request.
    """

    def __init__(self, count: int) -> None:
        self._batches: deque[Sequence[TokenEvent]] = deque()
        self._open = set(range(count))
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
        self._batches.append(events)
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

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Sequence[TokenEvent]:
        while not self._batches:
            if not self._open:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._batches.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
