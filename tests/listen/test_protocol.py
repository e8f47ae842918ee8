"""One connection, in memory: what has been refused is not begun after all, and nothing is left of a connection that is over."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
import weakref
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from tests.server.test_connections import GET, Wire
from tests.server.test_wire import HEAD
from uvicorn.server import ServerState

from quintet.listen import protocol
from quintet.listen.crowd import Crowd
from quintet.listen.linger import CLOSE_S, LINGER_S, YIELD_S
from quintet.listen.protocol import FRAMING_BYTES, HEAD_BYTES, STUCK_S, Protocol
from quintet.server.asgi import ASGIApp, Receive, Scope, Send


async def early(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers without a look at the body."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def connected(app: ASGIApp, wire: Wire, crowd: Crowd[Protocol] | None = None) -> Protocol:
    crowd = Crowd(1, time.monotonic) if crowd is None else crowd
    one = Protocol(uvicorn.Config(app, http=Protocol, log_config=None, timeout_keep_alive=1000), ServerState(), {}, crowd)
    crowd.joined(one)
    one.connection_made(wire)
    return one


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def stopped_clock() -> Callable[[float], Awaitable[None]]:
    """The loop's time stands still, whatever holds this machine up, but for what is awaited of this."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    loop.time = lambda: now  # type: ignore[method-assign]

    async def passes(seconds: float) -> None:
        nonlocal now
        now += seconds
        await turns()

    return passes


@pytest.mark.fault("E03")
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (GET.replace(b"host: x", b"host: x\r\nx: " + b"y" * 2 * HEAD_BYTES), b"431"),
        (GET.replace(b"host: x", b"host: x" + b"\r\nx: y" * (HEAD_BYTES // 3)), b"431"),
        (GET.replace(b"livez", b"a" * 2 * HEAD_BYTES), b"414"),
    ],
    ids=["large", "many", "URL"],
)
def test_what_is_refused_for_its_head_is_not_begun_though_all_of_it_is_there(data: bytes, status: bytes) -> None:
    begun: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.append(scope["path"])
        await early(scope, receive, send)

    async def go() -> None:
        wire = Wire()
        one = connected(app, wire)
        one.data_received(data + GET)
        await turns()
        one.connection_lost(None)
        assert wire.got.startswith(b"HTTP/1.1 " + status) and wire.got.count(b"HTTP/1.1") == 1
        assert not begun

    asyncio.run(go())


@pytest.mark.fault("E03")
def test_whose_trailers_are_refused_is_told_that_its_client_is_gone_and_what_comes_after_them_is_not_begun() -> None:
    """Though their end is there: else its body would be whole."""
    heard: list[tuple[str, str]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            heard.append((scope["path"], message["type"]))
            more = message.get("more_body", False)

    async def go() -> None:
        wire = Wire()
        one = connected(app, wire)
        trailers = b"x: " + b"y" * 3 * FRAMING_BYTES + b"\r\n\r\n"
        one.data_received(HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await turns()
        one.data_received(b"0\r\n" + trailers + GET)
        await turns()
        assert wire.got.startswith(b"HTTP/1.1 431") and wire.got.count(b"HTTP/1.1") == 1
        assert heard == [("/v1/completions", "http.request"), ("/v1/completions", "http.disconnect")]
        one.connection_lost(None)

    asyncio.run(go())


@pytest.mark.fault("E03")
@pytest.mark.parametrize(
    "pieces",
    [
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"0\r\nx: " + b"y" * (FRAMING_BYTES // 2), b"\r\n\r\n"),
        (GET[:-2] + b"x: " + b"y" * (HEAD_BYTES // 2), b"\r\n\r\n"),
    ],
    ids=["trailers", "heads"],
)
def test_trailers_and_heads_count_for_their_own_request_alone(pieces: tuple[bytes, ...]) -> None:
    async def go() -> None:
        wire = Wire()
        one = connected(early, wire)
        for _ in range(4):
            for piece in pieces:
                one.data_received(piece)
            await turns()
        assert wire.got.count(b"HTTP/1.1 200") == 4
        one.connection_lost(None)

    asyncio.run(go())


@pytest.mark.fault("E03")
def test_a_refusal_never_stands_in_the_middle_of_an_answer() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await asyncio.Event().wait()

    async def go() -> None:
        wire = Wire()
        one = connected(app, wire)
        one.data_received(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        await turns()
        one.data_received(b"0\r\n" + b"x: " + b"y" * 3 * FRAMING_BYTES)
        await turns()
        assert wire.got.endswith(b"\r\n\r\nbegun")
        one.connection_lost(None)

    asyncio.run(go())


@pytest.mark.fault("B23")
def test_a_client_that_reads_on_in_time_is_not_cut_off_and_one_that_stops_again_is() -> None:
    async def go() -> None:
        wire, passes = Wire(), stopped_clock()
        one = connected(early, wire)
        one.data_received(GET)
        await turns()
        one.pause_writing()
        await passes(0.9 * STUCK_S)
        one.resume_writing()
        await passes(2 * STUCK_S)
        assert not wire.is_closing()
        one.pause_writing()
        await passes(0.9 * STUCK_S)
        assert not wire.is_closing()
        await passes(0.2 * STUCK_S)
        assert wire.is_closing()
        one.connection_lost(None)

    asyncio.run(go())


@pytest.mark.fault("E04")
def test_who_sends_far_ahead_is_read_from_again_when_that_had_its_turn() -> None:
    class Read(Wire):
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[str] = []

        def pause_reading(self) -> None:
            self.asked.append("pause")

        def resume_reading(self) -> None:
            self.asked.append("resume")

    async def go() -> None:
        wire, many = Read(), 2 * protocol.AHEAD_BYTES // len(GET)
        one = connected(early, wire)
        one.data_received(GET * many)
        assert wire.asked[-1] == "pause"
        async with asyncio.timeout(60):
            while wire.got.count(b"HTTP/1.1 200") < many:
                await asyncio.sleep(0)
        assert wire.asked[-1] == "resume"
        one.connection_lost(None)

    asyncio.run(go())


def test_nothing_of_a_body_that_was_read_is_kept_while_it_is_answered() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        reads.set()
        await asyncio.Event().wait()

    async def go() -> None:
        one = connected(app, Wire())
        tracemalloc.start()
        try:
            one.data_received(HEAD + b"content-length: 1000000\r\n\r\n")
            one.data_received(b"x" * 1_000_000)
            await reads.wait()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < 500_000
        one.connection_lost(None)

    reads = asyncio.Event()
    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.fault("E02")
def test_after_an_early_answer_the_connection_goes_on_if_the_rest_of_the_body_comes_in_time() -> None:
    async def go() -> None:
        wire, passes = Wire(), stopped_clock()
        one = connected(early, wire)
        one.data_received(HEAD + b"content-length: 2\r\n\r\na")
        await turns()
        assert wire.got.startswith(b"HTTP/1.1 200") and b"connection: close" not in wire.got
        await passes(0.9 * LINGER_S)
        one.data_received(b"b")
        await passes(2 * LINGER_S)
        assert not wire.is_closing()
        one.data_received(HEAD + b"content-length: 2\r\n\r\na")
        await turns()
        await passes(0.9 * LINGER_S)
        assert not wire.is_closing()
        await passes(0.2 * LINGER_S)
        assert wire.is_closing(), "this one's did not come"
        one.connection_lost(None)

    asyncio.run(go())


@pytest.mark.fault("E02")
def test_an_early_answer_to_who_waits_for_a_word_before_the_body_ends_the_connection() -> None:
    """It need not send the body now: what comes next could be a request, or not (RFC 9110, 10.1.1)."""

    async def go() -> None:
        wire = Wire()
        one = connected(early, wire)
        one.data_received(HEAD + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        await turns()
        assert wire.got.startswith(b"HTTP/1.1 200") and b"\r\nconnection: close\r\n" in wire.got
        one.connection_lost(None)

    asyncio.run(go())


def reading(one: Protocol) -> None:
    one.data_received(GET[:-1])


def stuck(one: Protocol) -> None:
    one.data_received(GET)
    one.pause_writing()


def answered_early(one: Protocol) -> None:
    """The rest of its body may still come."""
    one.data_received(HEAD + b"content-length: 10\r\n\r\n")


def refused(one: Protocol) -> None:
    one.data_received(b"\0")


@pytest.mark.fault("E02")
@pytest.mark.parametrize("comes_to", [reading, stuck, answered_early, refused])
def test_nothing_is_left_of_a_connection_that_is_over(comes_to: Callable[[Protocol], None]) -> None:
    """A timer that runs on would hold all of it, for half a minute; those who come and go are many."""

    async def go() -> None:
        crowd: Crowd[Protocol] = Crowd(1, time.monotonic)
        wire = Wire()
        one = connected(early, wire, crowd)
        parts = weakref.ref(one), weakref.ref(wire)
        comes_to(one)
        await turns()
        wire.close()  # its client goes
        one.connection_lost(None)
        await turns()
        del one, wire
        gc.collect()
        assert [part() for part in parts] == [None, None] and not len(crowd)

    asyncio.run(go())


class Unended(Wire):
    """Its client takes no end: it closes when it is cut off, and not before."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def close(self) -> None:
        self.told.append("close")

    def abort(self) -> None:
        self.told.append("abort")


@pytest.mark.parametrize(
    ("data", "end", "seconds"),
    [(GET, Protocol.timeout_keep_alive_handler, CLOSE_S), (GET, Protocol.give_way, YIELD_S), (GET[:-1], Protocol.give_way, YIELD_S)],
    ids=["nothing more came", "its place is wanted", "its place is wanted before its request is there"],
)
def test_whoever_takes_no_end_of_the_connection_keeps_it_no_longer(data: bytes, end: Callable[[Protocol], None], seconds: float) -> None:
    """A descriptor, and one of as many connections as there may be: where their clients are there and do not read, for ever."""

    async def go() -> None:
        wire, passes = Unended(), stopped_clock()
        one = connected(early, wire)
        one.data_received(data)
        await turns()
        end(one)
        await passes(0.9 * seconds)
        assert "close" in wire.told and "abort" not in wire.told
        await passes(0.2 * seconds)
        assert "abort" in wire.told
        one.connection_lost(None)

    asyncio.run(go())


BAD = [b"\0", HEAD + b"transfer-encoding: gzip\r\n\r\n", HEAD + b"host: y\r\n\r\n", HEAD.replace(b"1.1", b"3.0") + b"\r\n"]


@pytest.mark.fault("E02")
@pytest.mark.parametrize("data", BAD, ids=["no HTTP", "framing", "host", "version"])
def test_who_is_refused_is_told_why_once_and_given_time_to_read_it(data: bytes) -> None:
    async def go() -> None:
        wire = Wire()
        one = connected(early, wire)
        for _ in range(3):
            one.data_received(data)
        await turns()
        assert wire.got.count(b"HTTP/1.1") == wire.got.count(b"connection: close") == 1
        assert not wire.is_closing()
        one.connection_lost(None)

    asyncio.run(go())


def test_the_servers_end_waits_for_no_client_that_was_refused_though_its_work_has_not_ended() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await ends.wait()

    async def go() -> None:
        wire = Wire()
        one = connected(app, wire)
        one.data_received(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        await turns()
        one.data_received(b"no size\r\n")
        assert wire.got.startswith(b"HTTP/1.1 400") and not wire.is_closing()
        one.shutdown()
        assert wire.is_closing()
        one.connection_lost(None)
        ends.set()
        await turns()

    ends = asyncio.Event()
    asyncio.run(go())
