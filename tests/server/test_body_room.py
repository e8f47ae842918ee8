"""Memory for bodies that arrive: bounded over all connections, shared between keys, and never waited for by two for each other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.live import serving
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend
from tests.support.waiting import until

from quintet.config import ServerConfig
from quintet.errors import Overloaded
from quintet.executor import FairExecutor
from quintet.server import body_room
from quintet.server.body_room import SMALL_BYTES, BodyHold, BodyRoom

LARGE = 300 * 1024
ROOM = 4 * LARGE
BODY = json.dumps({"prompt": "x", "max_tokens": 1, "other": "x" * (LARGE - 100)}).encode()


def head(key: str, *lines: str) -> bytes:
    words = ["POST /v1/completions HTTP/1.1", "host: x", f"authorization: Bearer {key}", "content-type: application/json", *lines]
    return "\r\n".join([*words, "", ""]).encode()


def declared(key: str) -> bytes:
    return head(key, f"content-length: {len(BODY)}")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def status(client: socket.socket) -> bytes:
    return client.recv(65536)[9:12]


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[BodyRoom]:
    """Those of the servers that are made."""
    monkeypatch.setattr(body_room, "MOST_BYTES", ROOM)
    made: list[BodyRoom] = []
    begin = BodyRoom.__init__

    def noted(self: BodyRoom, largest: int) -> None:
        begin(self, largest)
        made.append(self)

    monkeypatch.setattr(BodyRoom, "__init__", noted)
    return made


@pytest.fixture
def port(rooms: list[BodyRoom]) -> Iterator[int]:
    with serving(lambda: create_app(ScriptedBackend(), ServerConfig(api_keys=("a", "b"), max_body_bytes=LARGE))) as port:
        yield port


@pytest.mark.fault("B13")
@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_that_arrive_slowly_take_bounded_memory_and_leave_others_theirs(port: int, rooms: list[BodyRoom], chunked: bool) -> None:
    first, rest = BODY[: LARGE // 2], BODY[LARGE // 2 :]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(8)]
        for client in clients:
            client.sendall(head("a", "transfer-encoding: chunked") + chunk(first) if chunked else declared("a") + first)
        until(lambda: rooms and rooms[0].held >= ROOM // 2 - LARGE)
        (room,) = rooms
        with socket.create_connection(("127.0.0.1", port), timeout=60) as other:
            other.sendall(declared("b") + BODY)
            assert status(other) == b"200", "half of the room is others'"
        assert room.held <= ROOM // 2
        for client in clients:
            client.sendall(chunk(rest) + b"0\r\n\r\n" if chunked else rest)
        assert [status(client) for client in clients] == [b"200"] * 8
    until(lambda: room.held == 0)


@pytest.mark.fault("B13")
def test_all_addresses_of_an_ipv6_network_have_one_share_of_the_room(rooms: list[BodyRoom]) -> None:
    def sent(address: str, data: bytes) -> socket.socket:
        client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        client.sendall(head("none", f"x-forwarded-for: {address}", f"content-length: {len(BODY)}") + data)
        return client

    config = ServerConfig(trusted_proxy=("127.0.0.0/8",), max_body_bytes=LARGE)
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(serving(lambda: create_app(ScriptedBackend(), config)))
        clients = [sent(f"2001:db8::{number}", BODY[:-1]) for number in range(1, 9)]
        until(lambda: rooms and rooms[0].held >= ROOM // 2 - LARGE)
        assert status(sent("2001:db8:0:1::1", BODY)) == b"200", "half of the room is others'"
        for client in clients:
            client.sendall(BODY[-1:])
        assert [status(client) for client in clients] == [b"200"] * 8


@pytest.mark.parametrize("sent", [b"", BODY[: LARGE // 2], b"[" * len(BODY)], ids=["nothing", "a part", "no JSON"])
def test_room_is_free_again_whatever_becomes_of_a_body(port: int, rooms: list[BodyRoom], sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(declared("a") + sent)
        until(lambda: (rooms and rooms[0].held == len(BODY)) or len(sent) == len(BODY))
        if len(sent) == len(BODY):
            assert status(client) == b"400"
    until(lambda: rooms[0].held == 0)


def test_a_body_of_a_request_that_is_computed_whoever_listens_has_its_room_until_it_is_read(
    port: int, rooms: list[BodyRoom], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an ``Idempotency-Key``; its client's leaving gave the room back, and the body waited on to be read."""
    go, parsing, run = threading.Event(), threading.Event(), FairExecutor.run

    async def held(executor: FairExecutor, tenant: str, work: Callable[[], object]) -> object:
        parsing.set()
        await asyncio.to_thread(go.wait, 60)
        return await run(executor, tenant, work)

    monkeypatch.setattr(FairExecutor, "run", held)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(head("a", "idempotency-key: one", f"content-length: {len(BODY)}") + BODY)
        assert parsing.wait(60)
    time.sleep(0.3)  # the client has left
    assert rooms[0].held == len(BODY)
    go.set()
    until(lambda: rooms[0].held == 0)


def test_a_body_that_gets_no_room_is_told_to_come_again(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_room, "WAIT_S", 0.1)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(3)]
        for client in clients:
            client.sendall(declared("a") + BODY[:-1])
        answers = [status(client) for client in clients[2:]]
        assert answers == [b"503"]
        clients[0].sendall(BODY[-1:])
        assert status(clients[0]) == b"200"


Taken = tuple[str, int, bool]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, LARGE), st.booleans()), max_size=30))
def test_whatever_order_bodies_come_and_go_in_the_bound_holds_and_all_get_room(asked: list[Taken]) -> None:
    async def go() -> None:
        room = BodyRoom(LARGE)
        room._most = 2 * LARGE + SMALL_BYTES
        most = 0

        async def one(caller: str, size: int, leaves: bool) -> None:
            nonlocal most
            hold = BodyHold(room, caller)
            task = asyncio.ensure_future(hold.take(size))
            await asyncio.sleep(0)
            if leaves:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            most = max(most, room.held)
            await asyncio.sleep(0)
            hold.let_go()

        async with asyncio.timeout(30):
            await asyncio.gather(*(one(*taken) for taken in asked))
        assert most <= room._most
        assert room.held == 0 and not room._waiting

    asyncio.run(go())


def test_a_wait_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_room, "WAIT_S", 0.01)

    async def go() -> None:
        room = BodyRoom(LARGE)
        room._most = 2 * LARGE
        first, second = BodyHold(room, "a"), BodyHold(room, "a")
        await first.take(LARGE)
        with pytest.raises(Overloaded):
            await second.take(LARGE)
        first.let_go()
        await second.take(LARGE)
        second.let_go()
        second.let_go()
        assert room.held == 0 and not room._waiting

    asyncio.run(go())


def test_whoever_leaves_while_it_waits_for_room_is_forgotten_at_once() -> None:
    """They are no connections any more, and nothing else bounds how many come and go."""

    async def go() -> None:
        room = BodyRoom(LARGE)
        room._most = 2 * LARGE
        first, lost = BodyHold(room, "a"), asyncio.get_running_loop().create_future()
        assert await first.take(LARGE)
        second = asyncio.ensure_future(BodyHold(room, "a", lost).take(LARGE))
        await asyncio.sleep(0)
        assert room._waiting
        lost.set_result(None)
        assert not await second
        assert not room._waiting and room.held == LARGE

    asyncio.run(asyncio.wait_for(go(), 10))


def test_a_client_that_breaks_off_while_its_body_waits_for_room_leaves_nothing(port: int, rooms: list[BodyRoom]) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            client.sendall(declared("a") + BODY[:-1])
        until(lambda: rooms and rooms[0].held > ROOM // 2 - LARGE)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(declared("a"))
            until(lambda: rooms[0]._waiting)
        until(lambda: not rooms[0]._waiting)
        assert rooms[0].held > ROOM // 2 - LARGE
