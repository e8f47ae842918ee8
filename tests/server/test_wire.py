"""Hostile HTTP on the wire: whatever one connection sends, the next client is served, and one request gets one answer."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
from tests.server.live import serving
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.listen import protocol

BODY = b'{"prompt":"a","max_tokens":2}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
GOOD = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[ScriptedBackend, int]]:
    backend = ScriptedBackend()
    with serving(lambda: create_app(backend, ServerConfig())) as port:
        yield backend, port


def exchange(port: int, data: bytes) -> bytes:
    """Send and read to the end; the server may cut the connection at any time."""
    got = b""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as client:
        try:
            client.sendall(data)
            while chunk := client.recv(65536):
                got += chunk
        except ConnectionError:
            pass
    return got


def ask(port: int) -> bytes:
    return exchange(port, GOOD.replace(b"host: x", b"host: x\r\nconnection: close"))


@pytest.mark.fault("E02", "E04")
@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"content-length: 29\r\ntransfer-encoding: chunked\r\n\r\n" + BODY,
        HEAD + b"content-length: 29\r\ncontent-length: 30\r\n\r\n" + BODY,
        HEAD + b"content-length: +29\r\n\r\n" + BODY,
        HEAD + b"transfer-encoding: chunked, identity\r\n\r\n1d\r\n" + BODY + b"\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n" + BODY + b"\r\n0\r\n\r\n",
        HEAD + b"x-a: b\r\n folded\r\nx-nul: a\x00b\r\ncontent-length: 29\r\n\r\n" + BODY,
        b"POST /v1/completions HTTP/9.9\r\nhost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00" * 1000,
    ],
)
def test_a_malformed_request_starts_no_work_and_its_connection_is_closed(server: tuple[ScriptedBackend, int], data: bytes) -> None:
    backend, port = server
    before = backend.submitted
    got = exchange(port, data)
    assert backend.submitted == before
    assert not got or got.startswith(b"HTTP/1.1 4")
    assert b"Traceback" not in got
    assert b" the cat" in ask(port)


@pytest.mark.fault("E02")
def test_a_body_that_breaks_off_starts_no_work_though_what_came_of_it_is_a_request(server: tuple[ScriptedBackend, int]) -> None:
    backend, port = server
    before = backend.submitted
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(HEAD + b"content-length: %d\r\n\r\n" % (len(BODY) + 1) + BODY)
        client.shutdown(socket.SHUT_WR)
        assert not recv_all(client).startswith(b"HTTP/1.1 200")
    assert b" the cat" in ask(port)
    assert backend.submitted == before + 1, "of the one after it"


LARGE = [b"x: y\r\n" * 10_000, b"x-big: " + b"y" * 1_000_000 + b"\r\n", b"range: bytes=" + b"0-1," * 100_000 + b"\r\n"]


@pytest.mark.fault("E03")
@pytest.mark.parametrize("headers", LARGE, ids=["many", "large", "ranges"])
def test_many_or_large_headers_are_refused(server: tuple[ScriptedBackend, int], headers: bytes) -> None:
    _, port = server
    got = exchange(port, GOOD.replace(b"host: x\r\n", b"host: x\r\nconnection: close\r\n" + headers))
    assert got.startswith(b"HTTP/1.1 431 ")
    assert b" the cat" in ask(port)


@pytest.mark.fault("E04")
def test_a_hundred_requests_in_one_piece_get_a_hundred_answers(server: tuple[ScriptedBackend, int]) -> None:
    backend, port = server
    before = backend.submitted
    got = exchange(port, GOOD * 99 + GOOD.replace(b"host: x", b"host: x\r\nconnection: close"))
    assert got.count(b"HTTP/1.1 200 OK") == got.count(b" the cat") == backend.submitted - before == 100


@pytest.mark.fault("F04")
def test_a_host_header_moves_nothing() -> None:
    with serving(lambda: create_app(ScriptedBackend(), ServerConfig(api_keys=("sk",)))) as port:
        for host in (b"evil/?", b"evil/#", b"a/health?x=", b"x@y", b""):
            assert exchange(port, ask_with(host)).startswith((b"HTTP/1.1 401", b"HTTP/1.1 400"))


def ask_with(host: bytes) -> bytes:
    return GOOD.replace(b"host: x", b"connection: close\r\nx-original-url: /health\r\nhost: " + host)


# Limits in time and size


def recv_all(client: socket.socket) -> bytes:
    got = b""
    try:
        while chunk := client.recv(65536):
            got += chunk
    except ConnectionError:
        pass
    return got


@pytest.mark.fault("E01")
@pytest.mark.parametrize("sent", [b"", b"\r\n", b"POST", HEAD, HEAD[:-9]], ids=["nothing", "a line", "a word", "no end", "half a header"])
def test_a_head_that_does_not_come_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, server: tuple[ScriptedBackend, int], sent: bytes
) -> None:
    with monkeypatch.context() as hurried:
        hurried.setattr(protocol, "HEAD_S", 0.3)
        with socket.create_connection(("127.0.0.1", server[1]), timeout=120) as client:
            client.sendall(sent)
            assert recv_all(client).startswith(b"HTTP/1.1 408")
    assert b" the cat" in ask(server[1])


@pytest.mark.fault("E01")
def test_a_head_that_drips_is_not_given_more_time(monkeypatch: pytest.MonkeyPatch, server: tuple[ScriptedBackend, int]) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.5)
    with socket.create_connection(("127.0.0.1", server[1]), timeout=120) as client:
        started = time.monotonic()
        client.sendall(HEAD)
        client.settimeout(0.02)
        got = b""
        while not got:
            assert time.monotonic() - started < 120
            client.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                got = client.recv(1000)
    assert got.startswith(b"HTTP/1.1 408")


def test_line_breaks_do_not_keep_an_idle_connection(server: tuple[ScriptedBackend, int]) -> None:
    with socket.create_connection(("127.0.0.1", server[1]), timeout=60) as client:
        client.sendall(GOOD + b"\r\n")
        assert b" the cat" in recv_all(client)  # until the server closes it


@pytest.mark.fault("E03")
@pytest.mark.parametrize("head", [b"x-a: " + b"b" * 10_000_000, b"x: y\r\n" * 1_000_000], ids=["one", "many"])
def test_a_head_without_end_is_refused_before_it_is_kept(server: tuple[ScriptedBackend, int], head: bytes) -> None:
    got = exchange(server[1], HEAD + head)
    assert not got or got.startswith(b"HTTP/1.1 431")
    assert b" the cat" in ask(server[1])


@pytest.mark.fault("B23")
def test_a_client_that_reads_nothing_is_cut_off_and_its_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "STUCK_S", 0.5)
    backend = ScriptedBackend(length=None, context=10_000_000)
    body = b'{"prompt":"a","max_tokens":9000000,"stream":true}'
    with (
        serving(lambda: create_app(backend, ServerConfig())) as port,
        socket.create_connection(("127.0.0.1", port), timeout=120) as client,
    ):
        client.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        end = time.monotonic() + 60
        while not backend.aborted:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert backend.steps < 500_000
        assert b"[DONE]" not in recv_all(client)
