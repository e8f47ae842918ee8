"""Server-sent events as the SDKs read them: unnamed ``data:`` frames and ``:`` comments, nothing else.

The SDKs fail on, or silently drop, frames with ``event:``, ``id:`` or ``retry:``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType

from quintet.server.exchange import Exchange

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

_HEADERS = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))  # the second: nginx must not collect the stream


def frames(chunks: Iterable[bytes]) -> bytes:
    """Frames of JSON texts, which hold no line break."""
    return b"".join([b"data: %b\n\n" % chunk for chunk in chunks])


class EventStream:
    """An event-stream answer: the headers on entry, then ``write``, and ``end`` exactly once.

    Whenever nothing was written for ``interval`` seconds a comment goes out, for a client that gives up on a silent connection.
    """

    def __init__(self, exchange: Exchange, headers: Iterable[tuple[str, str]], interval: float) -> None:
        self._exchange = exchange
        self._headers = (*_HEADERS, *headers)
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._written = self._loop.time()
        self._beat: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EventStream:
        await self._exchange.start(200, "text/event-stream; charset=utf-8", self._headers)
        self._beat = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._still()

    async def write(self, data: bytes) -> None:
        """Send data; waits while the client reads too slowly."""
        self._written = self._loop.time()
        await self._exchange.write(data)

    async def end(self, data: bytes) -> None:
        """Send the last data."""
        await self._still()
        await self._exchange.write(data, last=True)

    async def _keep_alive(self) -> None:
        while True:
            silence = self._loop.time() - self._written
            if silence >= self._interval:
                await self.write(KEEP_ALIVE)
            else:
                await asyncio.sleep(self._interval - silence)

    async def _still(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.wait({self._beat})
