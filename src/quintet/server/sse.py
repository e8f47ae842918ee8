"""Answers that take their time: server-sent events as the SDKs read them, and JSON.

Events are unnamed ``data:`` frames and ``:`` comments, nothing else: the SDKs fail on, or silently drop, frames with ``event:``, ``id:``
or ``retry:``. The SDKs' read time-out (60 s in three of them) counts from the last byte, so silence is filled: with comments, or with
spaces before a JSON body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from types import TracebackType

from quintet.server.http import Request

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class Form:
    """A media type, what fills its silence, and its headers."""

    media: str
    filler: bytes
    headers: tuple[tuple[str, str], ...]


# The second header: nginx must not collect the stream.
EVENTS = Form("text/event-stream; charset=utf-8", KEEP_ALIVE, (("cache-control", "no-cache"), ("x-accel-buffering", "no")))
JSON = Form("application/json", b" ", (("x-accel-buffering", "no"),))


def frames(chunks: Iterable[bytes]) -> bytes:
    """Frames of JSON texts, which hold no line break."""
    return b"".join([b"data: %b\n\n" % chunk for chunk in chunks])


class SlowAnswer:
    """An answer with status 200: the headers on entry, then ``write``, and ``end`` at most once.

    Left without ``end`` it breaks off: the HTTP server cuts the connection without the body's terminator, which no client takes for an
    end. Whenever nothing was written for ``interval`` seconds the filler goes out, for a client that gives up on a silent connection.
    """

    def __init__(self, request: Request, form: Form, headers: Iterable[tuple[str, str]], interval: float) -> None:
        self._request = request
        self._form = form
        self._headers = (*form.headers, *headers)
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._written = self._loop.time()
        self._filling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> SlowAnswer:
        await self._request.start(200, self._form.media, self._headers)
        self._filling = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stop_filling()

    def write(self, data: bytes) -> Awaitable[None]:
        """Send data; to be awaited: that waits while the client reads too slowly."""
        self._written = self._loop.time()
        return self._request.write(data)

    async def end(self, data: bytes) -> None:
        """Send the last data."""
        await self._stop_filling()
        await self._request.write(data, last=True)

    async def _keep_alive(self) -> None:
        while True:
            due, now = self._written + self._interval, self._loop.time()
            if now >= due:
                await self.write(self._form.filler)
            else:
                await asyncio.sleep(due - now)

    async def _stop_filling(self) -> None:
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait({self._filling})
