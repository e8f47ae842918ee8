"""Streams, silence, and clients that go away: in process, and over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest
from tests.server.asgi import JSON, SOURCE, Answer, acall, call, converse
from tests.server.live import serving
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend
from tests.support.waiting import until

from quintet.config import ServerConfig
from quintet.events import Event, TokenEvent
from quintet.inputs.sequence import Prepared, PreparedSequence
from quintet.server.sse import KEEP_ALIVE

LONG = {"prompt": "a", "max_tokens": 100_000}


def test_one_engine_step_is_one_piece_of_the_body() -> None:
    app = create_app(ScriptedBackend(), ServerConfig(), source=SOURCE)
    answer = call(app, {"prompt": ["a", "b", "c"], "max_tokens": 4, "stream": True})
    assert [part.count(b"data: ") for part in answer.parts] == [3, 3, 3, 7]  # the last: texts, ends, [DONE]


@pytest.mark.parametrize("ended", [True, False])
def test_who_has_an_answer_is_none_of_the_requests_at_a_time(ended: bool) -> None:
    """Fireworks' page: "Number of concurrent requests". The next of a client's may come before the server has put the last one away."""

    async def scenario() -> list[str | None]:
        app, gone, first = create_app(ScriptedBackend(), ServerConfig()), asyncio.Event(), Answer()
        body, path = {"prompt": "a", "max_tokens": 4, "stream": True}, "/fireworks/inference/v1/completions"
        pieces = len((await acall(app, body, path=path)).parts)
        assert (await acall(app, body | {"prompt": [99999]}, path=path)).status == 400, "and who is refused is none either"
        reading = asyncio.create_task(acall(app, body, path=path, stuck_at=pieces if ended else 1, gone=gone, into=first))
        while len(first.parts) < (pieces if ended else 1):
            await asyncio.sleep(0.001)
        told = [(await acall(app, body | {"stream": False}, path=path)).header("fireworks-num-concurrent-requests")]
        gone.set()
        await reading
        return [*told, (await acall(app, body | {"stream": False}, path=path)).header("fireworks-num-concurrent-requests")]

    assert asyncio.run(scenario()) == ["1" if ended else "2", "1"]


@pytest.mark.fault("E12")
def test_a_stream_is_unnamed_data_frames_only() -> None:
    answer = call(create_app(ScriptedBackend(), ServerConfig()), {"prompt": "a", "stream": True})
    assert (answer.header("cache-control"), answer.header("x-accel-buffering")) == ("no-cache", "no")
    assert {line[:6] for line in answer.body.decode().split("\n")} == {"data: ", ""}
    assert answer.body.endswith(b"\n\ndata: [DONE]\n\n")


@pytest.mark.fault("E12")
def test_a_silent_stream_says_keep_alive_before_and_between_its_tokens() -> None:
    answer = Answer()

    class Slow(ScriptedBackend):
        """Waits with each step for a comment."""

        async def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
            async for batch in super().submit(prepared):
                while answer.parts[-1:] != [KEEP_ALIVE]:
                    await asyncio.sleep(0.001)
                yield batch

    app = create_app(Slow(), ServerConfig(), keep_alive=0.01)
    call(app, {"prompt": "a", "max_tokens": 2, "stream": True}, into=answer)
    data = [part for part in answer.parts if part != KEEP_ALIVE]
    assert [part.count(b"data: ") for part in data] == [1, 3]


@pytest.mark.fault("E07")
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_stays_to_the_end_aborts_nothing(stream: bool) -> None:
    backend = ScriptedBackend()
    call(create_app(backend, ServerConfig()), {"prompt": "a", "stream": stream})
    assert backend.aborted == []


@pytest.mark.fault("E06")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pause", [0.001, 0.5], ids=["between tokens", "before the first token"])
def test_a_client_that_leaves_ends_its_own_work_and_no_other(stream: bool, pause: float) -> None:
    backend = ScriptedBackend(length=None, context=200_000, pause=pause)
    app = create_app(backend, ServerConfig())

    async def both() -> bytes:
        leaving = acall(app, {**LONG, "stream": stream}, leave_after=0.05)
        staying = acall(app, {"prompt": "a", "max_tokens": 3, "stream": stream})
        return (await asyncio.gather(leaving, staying))[1].body

    assert b"length" in asyncio.run(both())
    assert backend.aborted
    assert {seq for _, seq in backend.aborted} == {None}


@pytest.mark.fault("E06")
@pytest.mark.parametrize(
    ("path", "prompt", "packed"),
    [
        ("/v1/completions", "x" * 70_000, False),
        ("/completion", [1, "x" * 70_000], False),
        ("/cerebras/v1/completions", "x" * 70_000, True),
    ],
)
def test_a_long_text_is_not_tokenised_for_a_client_that_left_while_it_waited_for_that(path: str, prompt: object, packed: bool) -> None:
    body, headers = json.dumps({"prompt": prompt}).encode(), JSON
    if packed:
        body, headers = gzip.compress(body), [*JSON, ("content-encoding", "gzip")]
    gone, stopped = asyncio.Event(), list[str]()

    class Slow(ScriptedBackend):
        async def prepare(self, *_about: object, **_more: object) -> tuple[PreparedSequence, ...]:
            gone.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                stopped.append(path)
            return ()

        join = prepare

    answer = call(create_app(Slow(), ServerConfig()), body, path=path, headers=headers, gone=gone)
    assert (answer.status, stopped) == (0, [path])


def test_a_client_that_leaves_while_it_sends_gets_no_answer_and_starts_nothing() -> None:
    backend = ScriptedBackend()
    app = create_app(backend, ServerConfig())

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    converse(app, scope, receive, send)
    assert backend.prepared == 0


def test_a_fault_of_ours_in_the_middle_of_a_stream_is_an_error_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    from quintet.dialects.openai import dialect as openai

    feed = openai.OpenAIRenderer.feed
    calls = iter(range(100))

    def faulty(self: openai.OpenAIRenderer, event: Event) -> list[bytes]:
        if next(calls) == 2:
            raise RuntimeError("secret")
        return feed(self, event)

    monkeypatch.setattr(openai.OpenAIRenderer, "feed", faulty)
    backend = ScriptedBackend()
    answer = call(create_app(backend, ServerConfig()), {"prompt": "a", "stream": True})
    assert json.loads(answer.body.split(b"data: ")[-1])["error"]["message"] == "The server had an internal error."
    assert b"secret" not in answer.body
    assert {seq for _, seq in backend.aborted} == {None}


# Over sockets


@pytest.fixture
def endless() -> Iterator[tuple[ScriptedBackend, int]]:
    backend = ScriptedBackend(length=None, context=10_000_000, pause=0.001)
    with serving(lambda: create_app(backend, ServerConfig())) as port:
        yield backend, port


def connect(port: int, body: object, extra: str = "") -> socket.socket:
    data = json.dumps(body).encode()
    client = socket.create_connection(("127.0.0.1", port), timeout=120)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n{extra}\r\n"
    client.sendall(head.encode() + data)
    return client


def fin(client: socket.socket) -> None:
    client.close()


def rst(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def half_close(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("leave", [fin, rst, half_close])
@pytest.mark.parametrize("stream", [False, True])
def test_the_work_of_a_closed_connection_is_aborted(
    endless: tuple[ScriptedBackend, int], stream: bool, leave: Callable[[socket.socket], None]
) -> None:
    backend, port = endless
    client = connect(port, {"prompt": "a", "max_tokens": 1_000_000, "stream": stream})
    until(lambda: backend.steps > 5)
    assert backend.aborted == []
    leave(client)
    until(lambda: bool(backend.aborted))
    client.close()


@pytest.mark.fault("B23")
def test_for_a_client_that_reads_nothing_no_more_is_rendered_and_its_leaving_is_noticed(endless: tuple[ScriptedBackend, int]) -> None:
    backend, port = endless
    backend.pause = 0
    client = connect(port, {"prompt": "a", "max_tokens": 1_000_000, "stream": True})
    until(lambda: backend.steps > 10)
    steps = -1
    while steps != backend.steps:  # the service pulls the engine's events, so a full socket stops the pulling
        steps = backend.steps
        time.sleep(0.3)
    assert steps < 500_000
    assert backend.aborted == []
    rst(client)
    until(lambda: bool(backend.aborted))


def read_answer(client: socket.socket) -> tuple[int, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += client.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line[16:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: "))
    while len(body) < length:
        body += client.recv(65536)
    assert b"uvicorn" not in head
    return int(head.split()[1]), body


@pytest.mark.fault("A01")
@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b'{"prompt":"The sky is","max_tokens":5000000}', 400, b"'prompt'"),
        (b'{"prompt":[999999]}', 400, b"'prompt'"),
        (b'{"prompt":"a","max_tokens":-1}', 400, b"'max_tokens'"),
        (b'{"prompt":"a","max_tokens', 400, b"not valid JSON"),
        (b'{"prompt":"%b"}' % (b"x" * 3_000_000), 413, b"2097152 bytes"),
        (b'{"prompt":"a","temperature":NaN}', 400, b"'temperature'"),
    ],
)
def test_a_bad_request_is_told_why_and_the_same_connection_goes_on(body: bytes, status: int, says: bytes) -> None:
    with (
        serving(lambda: create_app(ScriptedBackend(), ServerConfig(max_body_bytes=2 << 20))) as port,
        socket.create_connection(("127.0.0.1", port), timeout=120) as client,
    ):
        for sent, expected, text in ((body, status, says), (b'{"prompt":"a","max_tokens":2}', 200, b" the cat")):
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(sent)}\r\n\r\n"
            client.sendall(head.encode() + sent)
            got, answer = read_answer(client)
            assert (got, text in answer) == (expected, True)
