"""How much is read from a connection at once: what was read cannot be left to the system any more, and there are thousands."""

from __future__ import annotations

import asyncio

READ_BYTES = 32 * 1024
"""Most bytes that are read at once. uvloop's own are 250 KB: more than a body may have that nobody has taken room for."""


class Reads(asyncio.BufferedProtocol):
    """In front of a protocol: gives it what arrives in small pieces.

    Args:
        buffer: to read into, ``READ_BYTES``; all connections of an event loop may share it, as it is empty again before the next read.
    """

    def __init__(self, inner: asyncio.Protocol, buffer: bytearray) -> None:
        self._inner, self._buffer = inner, buffer

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - asyncio's
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._inner.data_received(bytes(memoryview(self._buffer)[:nbytes]))

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
