"""Clients that read slowly, or not at all: what waits for them is bounded, they are cut off in the end, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time

import pytest
import uvicorn
from tests.server.live import serving
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend
from tests.server.test_connections import GET, Wire, echo
from uvicorn.server import ServerState

from quintet.config import ServerConfig
from quintet.listen import linger, protocol
from quintet.listen.crowd import Crowd
from quintet.server.asgi import Receive, Scope, Send

HELD = 256 * 1024
"""Most bytes of an answer, here and in the system, that wait for a client; what it has received itself comes on top."""

RECEIVED = 64 * 1024
PATIENCE_S = 60


def ask(port: int, tokens: int) -> socket.socket:
    """A client whose own system takes next to nothing on its behalf."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(PATIENCE_S)
    client.connect(("127.0.0.1", port))
    body = json.dumps({"prompt": "a", "max_tokens": tokens, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    client.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    return client


def rest(client: socket.socket) -> int:
    size = 0
    try:
        while part := client.recv(65536):
            size += len(part)
    except ConnectionError:
        pass
    return size


@pytest.mark.fault("B23")
@pytest.mark.parametrize("rate", [0, 20], ids=["stops", "reads a byte now and then"])
def test_little_waits_for_a_client_that_reads_little_and_it_is_cut_off_while_others_stream(
    monkeypatch: pytest.MonkeyPatch, rate: int
) -> None:
    monkeypatch.setattr(protocol, "STUCK_S", 1.0)
    backend = ScriptedBackend(length=None, context=10_000_000, pause=0.0001)
    with serving(lambda: create_app(backend, ServerConfig())) as port, ask(port, 9_000_000) as slow:
        over = threading.Event()
        taken = 0

        def drip() -> None:
            nonlocal taken
            while rate and not over.wait(1 / rate):
                taken += len(slow.recv(1))

        reader = threading.Thread(target=drip)
        reader.start()
        with ask(port, 300) as other:
            got = b""
            while b"[DONE]" not in got:
                part = other.recv(65536)
                assert part, "the others' streams are whole"
                got += part
        end = time.monotonic() + PATIENCE_S
        while not backend.aborted:
            assert time.monotonic() < end, "its work ends"
            time.sleep(0.01)
        over.set()
        reader.join(PATIENCE_S)
        held = taken + rest(slow)
        print(f"a client that {'reads' if rate else 'stops'}: {held // 1024} KiB were sent to it or waited for it")
        assert held <= HELD + RECEIVED


@pytest.mark.fault("E01")
def test_heads_that_drip_are_ended_and_others_are_served_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 in the fault table: QUINTET_TEST_SLOW_HEADS."""
    monkeypatch.setattr(protocol, "HEAD_S", 2.0)
    monkeypatch.setattr(linger, "LINGER_S", 1.0)
    many = int(os.environ.get("QUINTET_TEST_SLOW_HEADS", "200"))
    backend = ScriptedBackend()
    with serving(lambda: create_app(backend, ServerConfig())) as port:
        slow = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(many)]
        ended: set[socket.socket] = set()
        while len(ended) < many:
            with ask(port, 2) as honest:
                assert honest.recv(65536).startswith(b"HTTP/1.1 200")
            for each in slow:
                try:
                    if each not in ended:
                        each.sendall(b"P" if each.fileno() % 2 else b"\r")
                except ConnectionError:
                    ended.add(each)
            time.sleep(0.05)
        for each in slow:
            each.close()


@pytest.mark.fault("B23", "E04")
def test_not_one_request_is_begun_while_the_answer_before_it_waits_for_its_client() -> None:
    """Its work would be done, though what comes of it cannot be written either."""
    begun = list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.append(scope["path"])
        await echo(scope, receive, send)

    async def go() -> None:
        wire = Wire()
        one = protocol.Protocol(uvicorn.Config(app, http=protocol.Protocol, log_config=None), ServerState(), {}, Crowd(1, time.monotonic))
        one.connection_made(wire)
        one.data_received(GET)
        while b"]" not in wire.got:
            await asyncio.sleep(0)
        one.pause_writing()
        one.data_received(GET * 2)
        for _ in range(20):
            await asyncio.sleep(0)
        meanwhile = len(begun)
        one.resume_writing()
        while wire.got.count(b"]") < 3:
            await asyncio.sleep(0)
        one.connection_lost(None)
        assert (meanwhile, len(begun)) == (1, 3)

    asyncio.run(asyncio.wait_for(go(), PATIENCE_S))
