"""A connection that is closed while a request is still arriving goes on taking bytes for a while, which nobody reads.

Closed at once, with bytes unread, it would be reset, and the client might never see the answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

LINGER_S = 10.0
LINGER_BYTES = 64 * 1024 * 1024
"""How long, and for how many bytes, a client may go on sending what nobody reads."""


class Connection(asyncio.Transport):
    """A transport that closes in two steps while a request is still arriving: nothing more is sent, then nothing more is read."""

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._inner, self._loop = inner, loop
        self._linger: asyncio.TimerHandle | None = None
        self._wasted = 0
        self.unread = False  # a request has begun to arrive, and not ended
        self.full = False  # nothing more is read, whatever uvicorn says

    @property
    def lingers(self) -> bool:
        """It is closed, but still takes what the client sends."""
        return self._linger is not None

    def waste(self, size: int) -> None:
        """Bytes came that nobody reads."""
        self._wasted += size
        if self._wasted > LINGER_BYTES:
            self._inner.abort()

    def end(self) -> None:
        """The connection is lost."""
        if self._linger is not None:
            self._linger.cancel()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self.lingers or self._inner.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._linger is None:
            self._inner.write(data)

    def close(self) -> None:
        if not self.unread or self.is_closing():
            self._inner.close()
            return
        self._linger = self._loop.call_later(LINGER_S, self._inner.abort)
        if self._inner.can_write_eof():  # TLS has no half of an end
            self._inner.write_eof()
        self._inner.resume_reading()

    def abort(self) -> None:
        self._inner.abort()

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        if not self.full and not self._inner.is_closing():
            self._inner.resume_reading()
