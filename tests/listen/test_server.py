"""Connections that are taken, and when no more are."""

from __future__ import annotations

import asyncio
import os
import socket

import uvloop

from quintet.listen.server import Server
from quintet.listen.sockets import Listener, listen
from quintet.server.asgi import Receive, Scope, Send


async def nobody_asks(scope: Scope, receive: Receive, send: Send) -> None:
    """An application without requests."""


def test_the_end_after_a_hand_over_leaves_alone_what_has_the_sockets_number_by_then() -> None:
    async def test() -> None:
        listener = Listener(listen("127.0.0.1", 0))
        server = Server(nobody_asks, [listener], 1)
        serving = asyncio.create_task(server.serve())
        server.open()
        number = listener.sock.fileno()
        server.leave()
        listener.give()
        ours, theirs = socket.socketpair()
        with theirs:
            if ours.fileno() != number:
                os.dup2(ours.fileno(), number)
                ours.close()
                ours = socket.socket(fileno=number)
            reader, writer = await asyncio.open_connection(sock=ours)
            server.end()
            theirs.sendall(b"still heard\n")
            assert await reader.readline() == b"still heard\n"
            writer.close()
        await serving

    uvloop.run(asyncio.wait_for(test(), 60))
