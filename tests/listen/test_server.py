"""Connections that are taken, and when no more are."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest
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


@pytest.mark.fault("F07")
def test_what_a_client_writes_of_its_address_is_for_the_application_to_believe_or_not() -> None:
    """uvicorn would believe whoever comes from this machine, as everybody does behind a proxy on it."""
    seen: list[tuple[str, str]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            seen.append((scope["client"][0], scope["scheme"]))
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def test() -> None:
        listener = Listener(listen("127.0.0.1", 0))
        server = Server(app, [listener], 1)
        serving = asyncio.create_task(server.serve())
        server.open()
        reader, writer = await asyncio.open_connection(*listener.sock.getsockname())
        told = b"x-forwarded-for: 198.51.100.9\r\nx-forwarded-proto: https\r\n"
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + told + b"\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 204")
        writer.close()
        server.end()
        listener.give()
        await serving

    uvloop.run(asyncio.wait_for(test(), 60))
    assert seen == [("127.0.0.1", "http")]
