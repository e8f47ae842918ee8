"""The forms that a request may have in HTTP: old versions, expectations, methods, URLs and hosts of every kind; and what it may not."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator

import pytest
from tests.server.live import serving
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend
from tests.server.test_wire import BODY, exchange

from quintet.config import ServerConfig

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
SIZED = HEAD + b"content-length: %d\r\n" % len(BODY)
CLOSE = b"connection: close\r\n"
CHUNKS = b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[ScriptedBackend, int]]:
    backend = ScriptedBackend()
    with serving(lambda: create_app(backend, ServerConfig(allowed_hosts=()))) as port:
        yield backend, port


def get(port: int, line: bytes, host: bytes = b"host: localhost\r\n") -> tuple[int, bytes, bytes]:
    """Status, head and body."""
    head, _, body = exchange(port, line + b"\r\n" + host + CLOSE + b"\r\n").partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), head, body


@pytest.mark.fault("E13")
def test_to_http_1_0_a_stream_has_no_chunks_and_ends_with_the_connection(server: tuple[ScriptedBackend, int]) -> None:
    body = json.dumps({"prompt": "a", "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    told, _, frames = exchange(server[1], head + body).partition(b"\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 200")
    assert b"transfer-encoding" not in told
    assert b"content-length" not in told
    assert b"connection: close" in told
    assert frames.startswith(b"data: {")
    assert frames.endswith(b"}\n\ndata: [DONE]\n\n")


@pytest.mark.fault("E13")
def test_to_http_1_0_an_answer_of_known_length_says_it(server: tuple[ScriptedBackend, int]) -> None:
    told, _, body = exchange(server[1], b"GET /livez HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 200")
    assert b"content-length: %d" % len(body) in told


@pytest.mark.fault("E13")
def test_a_connection_is_closed_where_the_client_says_so_and_kept_where_not(server: tuple[ScriptedBackend, int]) -> None:
    with socket.create_connection(("127.0.0.1", server[1]), timeout=60) as client:
        for _ in range(3):
            client.sendall(SIZED + b"\r\n" + BODY)
            answer = http.client.HTTPResponse(client)
            answer.begin()
            assert (answer.status, bool(answer.read())) == (200, True)
    assert exchange(server[1], SIZED + CLOSE + b"\r\n" + BODY).count(b"connection: close") == 1  # exchange reads to the end


@pytest.mark.fault("E13")
def test_who_asks_whether_to_go_on_is_told_so_or_why_not(server: tuple[ScriptedBackend, int]) -> None:
    with socket.create_connection(("127.0.0.1", server[1]), timeout=60) as client:
        client.sendall(SIZED + b"expect: 100-continue\r\n" + CLOSE + b"\r\n")
        assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(BODY)
        assert client.recv(12) == b"HTTP/1.1 200"
    with socket.create_connection(("127.0.0.1", server[1]), timeout=60) as client:
        client.sendall(HEAD + b"content-length: 90000000\r\nexpect: 100-continue\r\n\r\n")
        refused = client.recv(65536)
    assert refused.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in refused


@pytest.mark.fault("E13")
def test_http_1_0_is_never_told_to_go_on(server: tuple[ScriptedBackend, int]) -> None:
    request = SIZED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"expect: 100-continue\r\n\r\n" + BODY
    assert exchange(server[1], request).startswith(b"HTTP/1.1 200")


@pytest.mark.fault("E13")
def test_white_space_around_a_value_is_no_part_of_it(server: tuple[ScriptedBackend, int]) -> None:
    """RFC 9110, 5.5. A length with a blank behind it was a body that is too long, and a key with one a wrong key."""
    line, *fields = SIZED.splitlines()
    head = b"\r\n".join([line, *(field.replace(b": ", b":\t ") + b" \t " for field in fields[:-1]), fields[-1] + b"  "])
    told = exchange(server[1], head + b"\r\nidempotency-key: again \r\n" + CLOSE + b"\r\n" + BODY)
    assert told.startswith(b"HTTP/1.1 200")
    coded = HEAD + CLOSE + b"transfer-encoding: chunked\t\r\n\r\n"
    assert exchange(server[1], coded + CHUNKS).startswith(b"HTTP/1.1 400"), "who reads it in another way sees another request"


@pytest.mark.fault("E13")
def test_methods_that_are_none_of_a_paths_are_405_and_head_has_no_body(server: tuple[ScriptedBackend, int]) -> None:
    for method in (b"TRACE", b"OPTIONS", b"PUT", b"DELETE", b"PATCH", b"GET"):
        status, head, body = get(server[1], method + b" /v1/completions HTTP/1.1")
        assert (status, b"\r\nallow: POST" in head) == (405, True), method
        assert b"localhost" not in body, "TRACE would send back what was asked, keys too"
    status, head, body = get(server[1], b"HEAD /livez HTTP/1.1")
    assert (status, body) == (200, b"")
    assert b"content-length: 18" in head
    assert get(server[1], b"CONNECT localhost:80 HTTP/1.1")[0] == 400
    assert get(server[1], b"OPTIONS * HTTP/1.1")[0] == 404


@pytest.mark.fault("E13", "F04")
def test_an_absolute_url_counts_in_place_of_the_host(server: tuple[ScriptedBackend, int]) -> None:
    """RFC 9112, 3.2.2."""
    assert get(server[1], b"GET http://localhost:8000/livez HTTP/1.1")[0] == 200
    assert get(server[1], b"GET http://localhost/livez HTTP/1.1", b"host: evil.example\r\n")[0] == 200
    assert get(server[1], b"GET http://evil.example/livez HTTP/1.1")[0] == 421


@pytest.mark.fault("E13", "F11")
@pytest.mark.parametrize(
    ("host", "status"),
    [(b"[::1]:8000", 200), (b"[::1]", 200), (b"127.0.0.1:1", 200), (b"", 200), (b"evil.example", 421), (b"[2001:db8::1]:80", 421)]
    + [(bad, 400) for bad in (b"a b", b"a/b", b"a?b", b"a#b", b"a@b/c", b'a"b', b"\xff")],
)
def test_a_host_is_a_name_or_an_address_and_a_port(server: tuple[ScriptedBackend, int], host: bytes, status: int) -> None:
    assert get(server[1], b"GET /livez HTTP/1.1", b"host: " + host + b"\r\n")[0] == status


# What may not be


@pytest.mark.fault("E04")
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (SIZED + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS, b"400"),
        (HEAD + b"transfer-encoding: chunked, identity\r\n\r\n" + CHUNKS, b"400"),
        (HEAD + b"transfer-encoding: identity\r\n\r\n" + BODY, b"400"),
        (HEAD + b"transfer-encoding: xchunked\r\n\r\n" + CHUNKS, b"400"),
        (HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS, b"400"),
        (HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n" + CHUNKS, b"400"),
        (HEAD.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS, b"400"),
        (SIZED + b"x-a: b\r\n folded\r\n\r\n" + BODY, b"400"),
        ((SIZED + b"\r\n").replace(b"\r\n", b"\n") + BODY, b"400"),
        (SIZED + b"x-a: b\n\r\n" + BODY, b"400"),
        (SIZED + b"x-a: b\rc\r\n\r\n" + BODY, b"400"),
        (SIZED + b"x-a: b\x00c\r\n\r\n" + BODY, b"400"),
        (HEAD + b"content-length : 29\r\n\r\n" + BODY, b"400"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1d\n" + BODY + b"\n0\n\n", b"400"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1c\r\n" + BODY + b"\r\n0\r\n\r\n", b"400"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n", b"400"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1d;" + b"e" * 1_000_000 + b"\r\n" + BODY + b"\r\n0\r\n\r\n", b"431"),
    ],
)
def test_what_two_servers_could_read_in_two_ways_is_refused_and_nothing_after_it_is_read(
    server: tuple[ScriptedBackend, int], data: bytes, status: bytes
) -> None:
    """A request that hides behind it would be somebody else's to a proxy."""
    backend, port = server
    before = backend.submitted
    got = exchange(port, data + SIZED + b"\r\n" + BODY)
    assert got.split(b" ", 2)[1] == status
    assert got.count(b"HTTP/1.1 ") == 1
    assert backend.submitted == before


@pytest.mark.fault("E02")
@pytest.mark.parametrize("length", [b"-1", b"+29", b"0x1d", b"29, 29", b"29, 30", b"", b"99999999999999999999999", b"2 9", b"1e3"])
def test_a_length_that_is_no_number_is_refused(server: tuple[ScriptedBackend, int], length: bytes) -> None:
    before = server[0].submitted
    got = exchange(server[1], HEAD + b"content-length: " + length + b"\r\n\r\n" + BODY)
    assert got.startswith(b"HTTP/1.1 400")
    assert server[0].submitted == before


@pytest.mark.fault("E02")
def test_a_body_that_is_longer_than_it_says_is_no_other_request_and_one_that_is_shorter_is_waited_for(
    server: tuple[ScriptedBackend, int],
) -> None:
    assert exchange(server[1], SIZED + b"\r\n" + BODY + b"and more of it\r\n\r\n").count(b"HTTP/1.1 200") == 1
    with socket.create_connection(("127.0.0.1", server[1]), timeout=0.2) as client:
        client.sendall(SIZED + b"\r\n" + BODY[:-1])
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(60)
        client.shutdown(socket.SHUT_WR)
        assert not client.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.fault("E03")
@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        (SIZED + b"x: y\r\n" * 10_000 + b"\r\n" + BODY, (431,)),
        (SIZED + b"x: " + b"y" * 1_000_000 + b"\r\n\r\n" + BODY, (431,)),
        (b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", (414,)),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nhost: localhost\r\n" + CLOSE + b"\r\n", (414,)),
        (SIZED + b"range: bytes=" + b"0-1," * 100_000 + b"\r\n\r\n" + BODY, (431,)),
        (SIZED + CLOSE + b"range: bytes=" + b"0-1," * 5_000 + b"\r\n\r\n" + BODY, (200,)),
    ],
    ids=["10,000 headers", "1 MB header", "1 MB URL", "20 kB URL", "100,000 ranges", "5,000 ranges"],
)
def test_large_heads_are_told_what_is_too_large(server: tuple[ScriptedBackend, int], data: bytes, statuses: tuple[int, ...]) -> None:
    assert int(exchange(server[1], data).split(b" ", 2)[1]) in statuses
