"""One connection's turn-taking: one request at a time, however it is cut; nothing without end; the answer arrives before the end does."""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
import socket
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from http.client import HTTPResponse
from typing import Any

import pytest
import uvicorn
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.server.live import serving
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend
from tests.server.test_wire import BODY, HEAD, exchange
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.server import ServerState

from quintet.config import ServerConfig
from quintet.listen import linger
from quintet.listen.crowd import Crowd
from quintet.listen.linger import Connection
from quintet.listen.protocol import Protocol
from quintet.server.asgi import Receive, Scope, Send

GET = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n"
TRAILER = b"x-trailer: %s\r\n" % (b"y" * 80)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(lambda: create_app(ScriptedBackend(), ServerConfig(api_keys=("sk",)))) as port:
        yield port


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """One entry for each request that a parser has begun."""
    begun: list[float] = []
    begin = Protocol.on_message_begin

    def noted(self: Protocol) -> None:
        begun.append(time.monotonic())
        begin(self)

    monkeypatch.setattr(Protocol, "on_message_begin", noted)
    return begun


# What never ends, or comes too early


@pytest.mark.fault("E03")
def test_trailers_without_end_are_refused_before_they_are_kept() -> None:
    backend = ScriptedBackend()
    with serving(lambda: create_app(backend, ServerConfig())) as port:
        for count in (1000, 200_000):  # 20 MB: more than the system's buffers hold, so it is read away
            assert exchange(port, CHUNKED + TRAILER * count).startswith(b"HTTP/1.1 431")
        assert exchange(port, CHUNKED + b"x-long: " + b"y" * 100_000).startswith(b"HTTP/1.1 431")
        assert exchange(port, HEAD + b"transfer-encoding: chunked\r\n\r\n1;" + b"e" * 100_000).startswith(b"HTTP/1.1 431")
        assert backend.submitted == 0
        assert exchange(port, CHUNKED.replace(b"host: x", b"host: x\r\nconnection: close") + TRAILER * 9 + b"\r\n").startswith(
            b"HTTP/1.1 200"
        )


@pytest.mark.fault("F04")
def test_a_key_in_a_trailer_opens_nothing(port: int) -> None:
    request = CHUNKED.replace(b"host: x", b"host: x\r\nconnection: close")
    assert exchange(port, request + b"authorization: Bearer sk\r\n\r\n").startswith(b"HTTP/1.1 401")
    assert exchange(port, request.replace(b"host: x", b"host: x\r\nauthorization: Bearer sk") + b"\r\n").startswith(b"HTTP/1.1 200")


async def wide(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100000")]})
    await send({"type": "http.response.body", "body": b"x" * 100_000})


@pytest.mark.fault("E04")
def test_no_request_is_begun_while_the_answers_before_it_are_not_read(begun: list[float]) -> None:
    with serving(lambda: wide) as port, socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.settimeout(0.5)
        sent = 0
        try:
            while sent < 50_000_000:
                sent += client.send(GET * 1000)
        except TimeoutError:
            pass
        before = len(begun)
        assert sent < 20_000_000  # the system's buffers, and little of ours
        assert before < 500  # answers that the system's buffers hold
        client.settimeout(20)
        for _ in range(1000):
            assert len(client.recv(100_000)) > 0
        assert len(begun) > before


@pytest.mark.fault("E02")
def test_an_answer_before_the_end_of_its_request_ends_the_connection(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linger, "LINGER_BYTES", 100_000)
    for head in (b"transfer-encoding: chunked\r\n\r\n", b"content-length: 100000000000\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.sendall(HEAD + head)
            answer = client.recv(65536)
            assert answer.startswith(b"HTTP/1.1 401")
            assert b"\r\nconnection: close\r\n" in answer
            sent = 0
            with pytest.raises(ConnectionError):
                while sent < 100_000_000:
                    client.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                    sent += 65536


@pytest.mark.parametrize("framing", [b"content-length: 20000000\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n1312d00\r\n"])
def test_who_sends_all_of_a_body_that_is_too_large_still_reads_why_it_was_refused(framing: bytes) -> None:
    with serving(lambda: create_app(ScriptedBackend(), ServerConfig())) as port:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
                client.sendall(HEAD + framing)
                for _ in range(200):
                    client.sendall(b"x" * 100_000)
                answer = HTTPResponse(client)  # read by its length: the server waits for what this client may still send
                answer.begin()
                assert answer.status == 413 and b"error" in answer.read()


def test_a_client_that_stays_after_a_refusal_is_left_in_the_end(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linger, "LINGER_S", 0.3)
    for framing in (b"content-length: 1000000\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n100000\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.sendall(HEAD + framing)
            assert client.recv(65536).startswith(b"HTTP/1.1 401")
            end = time.monotonic() + 60
            with pytest.raises(ConnectionError):
                while time.monotonic() < end:
                    client.sendall(b"x")
                    time.sleep(0.05)


@pytest.mark.fault("E04", "E13")
@pytest.mark.parametrize(
    ("line", "hosts", "status"),
    [
        (b"HTTP/1.1", b"", b"400"),
        (b"HTTP/1.1", b"host: a\r\nhost: a\r\n", b"400"),
        (b"HTTP/1.0", b"host: a\r\nhost: a\r\n", b"400"),
        (b"HTTP/1.0", b"", b"200"),
        (b"HTTP/1.1", b"host:\r\n", b"200"),
        (b"HTTP/2.0", b"host: a\r\n", b"505"),
        (b"HTTP/0.9", b"host: a\r\n", b"505"),
    ],
)
def test_a_request_names_one_host_and_a_version_that_is_spoken(port: int, line: bytes, hosts: bytes, status: bytes) -> None:
    got = exchange(port, b"GET /livez " + line + b"\r\nconnection: close\r\n" + hosts + b"\r\n")
    assert got.split(b" ", 2)[1] == status


# However it is cut


class Wire(asyncio.Transport):
    """The other side of a connection, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.got, self.closed = b"", False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: Any) -> None:
        self.got += bytes(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    names = b",".join(name for name, _ in scope["headers"])
    text = b"[%b %b %b]" % (scope["path"].encode(), names, body)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
    await send({"type": "http.response.body", "body": text})


async def conversation(pieces: Sequence[bytes], begun: list[float]) -> bytes:
    """What is answered to bytes that arrive in ``pieces``, with time between them for nothing, or for an answer."""
    wire = Wire()
    config = uvicorn.Config(echo, http=Protocol, log_config=None)
    one = Protocol(config, ServerState(), {}, Crowd(1, time.monotonic))
    one.connection_made(wire)
    begun.clear()
    for n, piece in enumerate(pieces):
        one.data_received(piece)
        assert len(begun) <= wire.got.count(b"HTTP/1.1 200") + 1
        if n % 3 == 2:
            await asyncio.sleep(0)
    quiet = 0
    while quiet < 20:
        before = len(wire.got)
        await asyncio.sleep(0)
        assert len(begun) <= wire.got.count(b"HTTP/1.1 200") + 1
        quiet = quiet + 1 if len(wire.got) == before else 0
    one.connection_lost(None)
    return wire.got


CONTENT = st.text("ab\r\n0", max_size=30).map(str.encode)


def sized(body: bytes) -> tuple[bytes, bytes]:
    return b"POST /sized HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body, b"[/sized host,content-length %b]" % body


def chunked(parts: list[bytes]) -> tuple[bytes, bytes]:
    body = b"".join(b"%x;e=1\r\n%b\r\n" % (len(part), part) for part in parts if part)
    head = b"POST /chunked HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + body + b"0\r\nx-trailer: y\r\n\r\n", b"[/chunked host,transfer-encoding %b]" % b"".join(parts)


def offering(request: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """The same from a client that would speak HTTP/2 as well, as curl's and Java's do."""
    raw, want = request
    offer = b"\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    return raw.replace(b"\r\n", offer, 1), want.replace(b" host", b" connection,upgrade,http2-settings,host")


REQUEST = st.one_of(
    st.sampled_from(
        [
            (b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n", b"[/a host ]"),
            (b"\r\n\r\nGET /b HTTP/1.1\r\nhost: x\r\n\r\n", b"[/b host ]"),
            (b"GET /c HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n", b"[/c host,connection,upgrade ]"),
        ]
    ),
    CONTENT.map(sized),
    CONTENT.map(sized).map(offering),
    st.lists(CONTENT, max_size=3).map(chunked),
    st.lists(CONTENT, max_size=3).map(chunked).map(offering),
)


@pytest.mark.fault("E04", "E12")
@settings(max_examples=300, deadline=None)
@given(requests=st.lists(REQUEST, min_size=1, max_size=6), cuts=st.lists(st.integers(0, 600), max_size=12))
@example(requests=[chunked([b"\r\n\r\n"]), sized(b"\r\n\r\n"), chunked([])], cuts=list(range(600)))
@example(requests=[offering(sized(GET)), offering(chunked([GET])), offering(sized(b"")), sized(GET)], cuts=[])
def test_requests_cut_anywhere_are_answered_one_by_one_and_in_order(requests: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    sent = b"".join(raw for raw, _ in requests)
    ends = [0, *sorted(cut for cut in set(cuts) if cut < len(sent)), len(sent)]
    pieces = [sent[a:b] for a, b in itertools.pairwise(ends) if a < b]
    with pytest.MonkeyPatch.context() as patch:
        got = asyncio.run(conversation(pieces, counted(patch)))
    assert [part.partition(b"\r\n\r\n")[2] for part in got.split(b"HTTP/1.1 200 OK\r\n")[1:]] == [want for _, want in requests]


@pytest.mark.parametrize(
    "request_",
    [
        chunked([b"\r\n" * 15_000]),
        chunked([b"\r\n0\r\n\r\n" * 4_000]),
        chunked([b"a"] * 3_000),
        (b"\r\n" * 15_000 + GET.replace(b"livez", b"a"), b"[/a host ]"),
    ],
)
def test_what_is_in_tiny_pieces_is_not_handed_on_in_as_many(
    request_: tuple[bytes, bytes], begun: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[int]()

    def counted(name: str) -> None:
        real = getattr(httptools_impl.HttpToolsProtocol, name)

        def counting(self: Protocol, data: bytes) -> None:
            calls.append(len(data))
            real(self, data)

        monkeypatch.setattr(httptools_impl.HttpToolsProtocol, name, counting)

    counted("data_received")
    counted("on_body")
    sent, want = request_
    assert asyncio.run(conversation([sent], begun)).endswith(want)
    assert len(calls) < 12  # they were thousands, of some microseconds each in which nobody else is served


@pytest.mark.fault("E04", "E13")
@pytest.mark.parametrize("framing", [b"content-length: %d\r\n\r\n" % len(GET), b"transfer-encoding: chunked\r\n\r\n", b"\r\n"])
def test_what_comes_after_a_connect_is_no_request(framing: bytes, begun: list[float]) -> None:
    head = b"CONNECT /a HTTP/1.1\r\nhost: x\r\n" + framing
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(GET), GET) if b"chunked" in framing else GET
    for pieces in ([head + body + GET], [head, body, GET]):
        got = asyncio.run(conversation(pieces, begun))
        assert (got.count(b"HTTP/1.1 200"), got.count(b"connection: close"), len(begun)) == (1, 1, 1)


def counted(patch: pytest.MonkeyPatch) -> list[float]:
    begun: list[float] = []
    begin = Protocol.on_message_begin

    def counting(self: Protocol) -> None:
        begun.append(0.0)
        begin(self)

    patch.setattr(Protocol, "on_message_begin", counting)
    return begun


@pytest.mark.fault("B13")
@pytest.mark.parametrize("reads", [False, True])
def test_nothing_is_kept_of_a_body_that_was_read_or_never_will_be(reads: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if reads:
            await receive()
            await asyncio.get_running_loop().create_future()  # as long as its answer takes
        await wide(scope, receive, send)

    async def go() -> int:
        one = Protocol(uvicorn.Config(app, http=Protocol, log_config=None), ServerState(), {}, Crowd(1, time.monotonic))
        wire = Wire()
        one.connection_made(wire)
        tracemalloc.start()
        one.data_received(sized(b"x" * 1_000_000)[0])
        for _ in range(20):
            await asyncio.sleep(0)
        kept = tracemalloc.get_traced_memory()[0] - len(wire.got)
        tracemalloc.stop()
        one.connection_lost(None)
        return kept

    assert asyncio.run(go()) < 500_000


# What is uvicorn's


def attributes(of: type, name: str) -> set[str]:
    """What ``of``'s methods take from ``name`` (``self.x``, ``self.cycle.x``)."""
    tree = ast.parse(inspect.getsource(of))
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == name}


def test_everything_of_uvicorns_that_is_relied_on_is_there() -> None:
    """These are not promised to anybody; where one is gone or means something else, ``protocol.py`` is to be read again."""
    config = uvicorn.Config(echo, http=Protocol, log_config=None)
    loop = asyncio.new_event_loop()
    theirs = httptools_impl.HttpToolsProtocol(config, ServerState(), {}, loop)
    theirs.on_message_begin()
    ours = set(vars(Protocol(config, ServerState(), {}, Crowd(1, time.monotonic), loop))) - set(vars(theirs)) | set(vars(Protocol))
    overridden = {name for name in vars(Protocol) if not name.startswith("_") and inspect.isfunction(vars(Protocol)[name])}
    assert {name for name in attributes(Protocol, "self") - ours if not hasattr(theirs, name)} == set()
    assert {name for name in overridden if not hasattr(httptools_impl.HttpToolsProtocol, name)} == {"give_way", "hurry", "leave"}
    cycle = httptools_impl.RequestResponseCycle(
        *({"method": "GET"}, Wire(), None, None, None, False, [], asyncio.Event(), False, True, loop.stop)  # type: ignore[arg-type]
    )
    assert {name for name in attributes(Protocol, "self.cycle") if not hasattr(cycle, name)} == set()
    assert {name for name in attributes(Protocol, "self.flow") if not hasattr(flow_control.FlowControl(Wire()), name)} == set()
    loop.close()


def test_uvicorn_asks_of_a_transport_only_what_ours_has() -> None:
    asked = attributes(httptools_impl.HttpToolsProtocol, "self.transport") | attributes(
        httptools_impl.RequestResponseCycle, "self.transport"
    )
    asked |= attributes(flow_control.FlowControl, "self._transport") | {"get_extra_info", "abort"}
    assert asked - {"set_protocol"} <= set(vars(Connection))  # that one is for WebSockets, which are off
