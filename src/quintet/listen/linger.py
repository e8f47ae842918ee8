"""A connection that is closed while a request is still arriving goes on taking bytes for a while, which nobody reads.

Closed at once, with bytes unread, it would be reset, and the client might never see the answer. However it is closed, its client has no
more than some time for the end: a system keeps what it cannot deliver for as long as the other side is there, and TLS waits for a word.
"""

from __future__ import annotations

import asyncio
from typing import Any

LINGER_S = 10.0
LINGER_BYTES = 64 * 1024 * 1024
"""How long, and for how many bytes, a client may go on sending what nobody reads."""

CLOSE_S = 30.0
"""How long a client may take to read what it was sent last, or over TLS to confirm the end."""

YIELD_S = 1.0
"""The same for a connection that has nothing more to send, and whose place others want."""


class Connection(asyncio.Transport):
    """A transport that closes in two steps while a request is still arriving: nothing more is sent, then nothing more is read."""

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._inner, self._loop = inner, loop
        self._cut: asyncio.TimerHandle | None = None
        self._wasted = 0
        self.lingers = False
        """It is closed, but still takes what the client sends."""
        self.unread = False  # a request has begun to arrive, and not ended
        self.full = False  # nothing more is read, whatever uvicorn says

    def waste(self, size: int) -> None:
        """Bytes came that nobody reads."""
        self._wasted += size
        if self._wasted > LINGER_BYTES:
            self._inner.abort()

    def end(self) -> None:
        """The connection is lost."""
        if self._cut is not None:
            self._cut.cancel()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self.lingers or self._inner.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.lingers:
            self._inner.write(data)

    def close(self) -> None:
        if not self.unread or self.is_closing():
            self._inner.close()
            self._cut_in(CLOSE_S)
            return
        self.lingers = True
        self._cut_in(LINGER_S)
        if self._inner.can_write_eof():  # TLS has no half of an end
            self._inner.write_eof()
        self._inner.resume_reading()

    def give_way(self) -> None:
        """Close without lingering: the place is wanted."""
        self._inner.close()
        self._cut_in(CLOSE_S if self._inner.get_write_buffer_size() else YIELD_S)

    def abort(self) -> None:
        self._inner.abort()

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        if not self.full and not self._inner.is_closing():
            self._inner.resume_reading()

    def _cut_in(self, seconds: float) -> None:
        self.end()
        self._cut = self._loop.call_later(seconds, self._inner.abort)
