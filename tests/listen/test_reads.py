"""A connection is read in pieces that are small enough to be kept for each of thousands, whatever the event loop, with TLS and without."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from quintet.listen.reads import READ_BYTES, Reads


class Kept(asyncio.Protocol):
    """Takes what comes until it is told not to, and hears of the end."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.ended = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.sizes.append(len(data))

    def eof_received(self) -> None:
        self.ended.set_result(None)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_megabyte_that_is_there_at_once_comes_in_small_pieces_and_the_end_after_it(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def go() -> list[int]:
        here, there = socket.socketpair()
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        here.setblocking(False)
        there.setblocking(False)
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(here, b"a" * (1 << 20)))
        kept = Kept()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: Reads(kept, bytearray(READ_BYTES)), there)
        await sending
        here.close()
        await kept.ended
        return kept.sizes

    with asyncio.Runner(loop_factory=loop) as runner:
        sizes = runner.run(go())
    assert sum(sizes) == 1 << 20
    assert max(sizes) <= READ_BYTES


def test_what_a_transport_tells_beside_data_is_passed_on() -> None:
    told: list[object] = []

    class Told(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            told.append(transport)

        def pause_writing(self) -> None:
            told.append("pause")

        def resume_writing(self) -> None:
            told.append("resume")

        def connection_lost(self, exc: Exception | None) -> None:
            told.append(exc)

    transport, lost = asyncio.Transport(), ConnectionResetError()
    reads = Reads(Told(), bytearray(READ_BYTES))
    reads.connection_made(transport)
    reads.pause_writing()
    reads.resume_writing()
    reads.connection_lost(lost)
    assert told == [transport, "pause", "resume", lost]
