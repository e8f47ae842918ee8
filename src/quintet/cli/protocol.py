"""HTTP/1.1 over uvicorn and httptools, with the limits in time and size that they do not have themselves."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 10.0
"""Seconds from a connection's opening, or a further request's first byte, to the end of the head."""

HEAD_BYTES = 64 * 1024
"""Most bytes of a head that is not complete; the application's own limits, which answer more politely, are below it."""

STUCK_S = 30.0
"""Seconds for which a client may leave what it was sent unread, once the buffers towards it are full."""


class Protocol(HttpToolsProtocol):
    """One connection.

    - A head that is too slow gets 408, one that is too large 431; both end the connection.
    - A client that does not read is cut off, which ends its work; until then the application is not asked for more.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._stuck_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._end_stuck()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse(b"431 Request Header Fields Too Large")
        elif self._idle and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            # Line breaks between requests, or the rest of a refused body: uvicorn has stopped its timer and would wait for ever.
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._start_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck_timer is None:
            self._stuck_timer = self.loop.call_later(STUCK_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_stuck()
        super().resume_writing()

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _start_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_S, self._refuse, b"408 Request Timeout")

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_stuck(self) -> None:
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
            self._stuck_timer = None

    def _refuse(self, status: bytes) -> None:
        self._end_head()
        if self.transport.is_closing():
            return
        if self._idle:  # else it would stand in the middle of another answer
            self.transport.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status)
        self.transport.close()
