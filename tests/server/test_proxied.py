"""Behind a bad network: streams arrive as they were written, or break where everybody notices, and nobody works on for nobody."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator

import pytest
from tests.server.live import serving
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend
from tests.support.proxy import proxied

from quintet.config import ServerConfig
from quintet.server.sse import KEEP_ALIVE

pytestmark = pytest.mark.fault("E12")

WORDS = (b" \xe4\xb8\xad", b" \xf0\x9f\x98\x80", b" caf\xc3\xa9", b" plain")
PATIENCE_S = 60


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[ScriptedBackend, int]]:
    backend = ScriptedBackend(words=WORDS, length=40, context=1000)
    with serving(lambda: create_app(backend, ServerConfig())) as port:
        yield backend, port


def request(stream: bool = True, **fields: object) -> bytes:
    body = json.dumps({"prompt": "a", "max_tokens": 40, "stream": stream, **fields}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def answer(port: int, stream: bool = True) -> bytes:
    """All that comes, up to the end or to the break."""
    got = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        client.sendall(request(stream))
        try:
            while part := client.recv(65536):
                got += part
        except ConnectionError:
            pass
    return got


def content(raw: bytes) -> bytes:
    """What the chunks of an HTTP answer hold."""
    rest, whole = raw.partition(b"\r\n\r\n")[2], b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        whole += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return whole


def texts(raw: bytes) -> str:
    frames = content(raw).decode().removesuffix("\n\n").split("\n\n")
    assert frames[-1] == "data: [DONE]"
    assert all(re.fullmatch("data: [^\n]*", frame) for frame in frames)
    return "".join(json.loads(frame[6:])["choices"][0]["text"] for frame in frames[:-1])


@pytest.mark.parametrize(
    "toxics",
    [{}, {"piece": 1}, {"latency": 0.02}, {"rate": 40_000.0}, {"buffer": 1 << 20}, {"piece": 7, "rate": 40_000.0}],
    ids=["none", "single bytes", "latency", "bandwidth", "buffering", "both"],
)
def test_a_stream_arrives_as_it_was_written(server: tuple[ScriptedBackend, int], toxics: dict[str, float]) -> None:
    with proxied(server[1], **toxics) as proxy:
        assert texts(answer(proxy.port)) == b"".join(WORDS[at % 4] for at in range(40)).decode()


def test_every_frame_is_whole_and_no_character_is_split_between_two(server: tuple[ScriptedBackend, int]) -> None:
    """Each chunk of the body, as the server wrote it, is whole frames; JSON escapes what is not ASCII."""
    raw = answer(server[1])
    rest, seen = raw.partition(b"\r\n\r\n")[2], 0
    while not rest.startswith(b"0\r\n"):
        size, _, rest = rest.partition(b"\r\n")
        chunk, rest = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        assert chunk.isascii()
        assert chunk.endswith(b"\n\n")
        assert all(frame.startswith(b"data: ") for frame in chunk.removesuffix(b"\n\n").split(b"\n\n"))
        seen += 1
    assert seen >= 40


@pytest.mark.parametrize("after", [1, 100, 400, 1500, 4000])
def test_a_reset_leaves_no_end_behind_and_ends_the_work(server: tuple[ScriptedBackend, int], after: int) -> None:
    """Whoever reads what came before it does not take it for all."""
    slow = ScriptedBackend(words=WORDS, length=None, context=10_000_000, pause=0.001)
    with serving(lambda: create_app(slow, ServerConfig())) as port, proxied(port, reset_after=after) as proxy:
        got = b""
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S) as client:
            client.sendall(request(max_tokens=9_000_000))
            try:
                while part := client.recv(65536):
                    got += part
            except ConnectionError:
                pass
        assert len(got) <= after
        assert b"[DONE]" not in got
        end = time.monotonic() + PATIENCE_S
        while not slow.aborted:
            assert time.monotonic() < end
            time.sleep(0.01)
    assert answer(server[1]).endswith(b"0\r\n\r\n"), "the next client's is whole"


def test_a_silent_stream_says_so_through_every_network() -> None:
    silent = ScriptedBackend(length=None, context=1000, pause=0.3)
    make = lambda: create_app(silent, ServerConfig(), keep_alive=0.05)  # noqa: E731
    with (
        serving(make) as port,
        proxied(port, piece=1) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S) as client,
    ):
        client.sendall(request(max_tokens=500))
        got = b""
        while got.count(KEEP_ALIVE) < 3:
            part = client.recv(65536)
            assert part
            got += part
    assert re.search(rb"\r\n(?:%x)\r\n: keep-alive\n\n\r\n" % len(KEEP_ALIVE), got), "a chunk of its own"


def test_a_network_that_swallows_everything_holds_up_nobody_else(server: tuple[ScriptedBackend, int]) -> None:
    with proxied(server[1], blackhole=True) as proxy, socket.create_connection(("127.0.0.1", proxy.port), timeout=0.2) as client:
        client.sendall(request())
        with pytest.raises(TimeoutError):
            client.recv(1)
        assert answer(server[1]).endswith(b"0\r\n\r\n")
