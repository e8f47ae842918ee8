"""Answers that take long or break: kept alive, cut where nothing else would be noticed, ended at the deadline; packed bodies."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import zlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.asgi import JSON, SOURCE, Answer, acall, call
from tests.server.live import serving
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.errors import BadRequest, BodyTooLarge
from quintet.events import TokenEvent
from quintet.inputs.sequence import Prepared
from quintet.request import CompletionRequest
from quintet.server import unpack
from quintet.server.asgi import Headers
from quintet.server.guard import Deadline
from quintet.server.unpack import as_json
from quintet.service.job import Job
from quintet.service.service import Service

ASK = {"prompt": "a", "max_tokens": 3}


class Held(ScriptedBackend):
    """Waits with its first step until the answer has at least two pieces: the headers are out."""

    answer: Answer

    async def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        async for batch in super().submit(prepared):
            while len(self.answer.parts) < 2:
                await asyncio.sleep(0.001)
            yield batch


def slow(backend: Held, **fields: object) -> Answer:
    backend.answer = Answer()
    app = create_app(backend, ServerConfig(), source=SOURCE, keep_alive=0.01)
    return call(app, {**ASK, **fields}, into=backend.answer)


def test_spaces_before_a_slow_json_body_keep_it_alive_and_change_nothing_else() -> None:
    answer = slow(Held())
    assert set(answer.parts[:-1]) == {b" "}
    assert answer.complete
    assert answer.json() == call(create_app(ScriptedBackend(), ServerConfig(), source=SOURCE), ASK).json()
    assert (answer.status, answer.header("content-type"), answer.header("content-length")) == (200, "application/json", None)


def test_a_slow_json_body_that_fails_is_cut_off_since_its_status_is_out() -> None:
    """A 200 with an error in its body is an empty completion to every SDK; a cut connection is an error, and tried again."""
    answer = slow(Held(break_after=2))
    assert (answer.status, set(answer.parts), answer.complete) == (200, {b" "}, False)


def test_a_slow_json_body_whose_client_leaves_is_not_said_to_have_broken_off(caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(ScriptedBackend(length=None, pause=0.01), ServerConfig(), source=SOURCE, keep_alive=0.01)
    assert not call(app, {**ASK, "max_tokens": 9}, leave_at=2).complete
    assert not caplog.messages


@pytest.mark.fault("E05")
def test_a_stream_that_breaks_ends_with_an_error_frame_and_is_cut_off() -> None:
    answer = call(create_app(ScriptedBackend(break_after=2), ServerConfig()), {**ASK, "max_tokens": 9, "stream": True})
    assert b'"error":{"message":"The engine failed."' in answer.parts[-1]
    assert not answer.complete


def test_over_a_socket_a_broken_stream_has_no_terminator_and_a_whole_one_has() -> None:
    for broken in (True, False):
        with serving(partial(create_app, ScriptedBackend(break_after=2 if broken else None), ServerConfig())) as port:
            body = json.dumps({**ASK, "max_tokens": 9, "stream": True}).encode()
            with socket.create_connection(("127.0.0.1", port), timeout=120) as client:
                head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
                client.sendall(head.encode() + (b"" if broken else b"connection: close\r\n") + b"\r\n" + body)
                got = b""
                while chunk := client.recv(65536):
                    got += chunk
        assert got.endswith(b"0\r\n\r\n") != broken
        assert (b"The engine failed." in got) == broken


@pytest.mark.fault("B07")
@pytest.mark.parametrize("stream", [False, True])
def test_at_the_deadline_the_work_ends_and_the_client_is_told_not_to_try_again(stream: bool) -> None:
    backend = ScriptedBackend(length=None, context=10_000_000, pause=0.01)
    app = create_app(backend, ServerConfig(timeout=1.0))
    answer = call(app, {"prompt": "a", "max_tokens": 1_000_000, "stream": stream})
    assert {seq for _, seq in backend.aborted} == {None}
    assert b"longer than 1 second" in answer.body
    if stream:
        assert b'"text":" the"' in answer.body
        assert (answer.status, answer.complete) == (200, False)
        assert b'"code":"deadline_exceeded"' in answer.parts[-1]
    else:
        assert (answer.status, answer.header("x-should-retry")) == (504, "false")
        assert answer.json()["error"]["code"] == "deadline_exceeded"


def test_a_stream_that_a_shutdown_ends_says_that_it_may_be_sent_again() -> None:
    async def go() -> None:
        backend, answer = ScriptedBackend(length=None, context=10_000_000, pause=0.01), Answer()
        app = create_app(backend, ServerConfig())
        asking = asyncio.create_task(acall(app, {**ASK, "max_tokens": 1_000_000, "stream": True}, into=answer))
        while not answer.parts:
            await asyncio.sleep(0.001)
        await backend.close()
        await asking
        assert b'"code":"overloaded"' in answer.parts[-1] and not answer.complete

    asyncio.run(go())


@pytest.mark.parametrize("stage", ["body", "preparing"])
def test_what_comes_before_the_work_takes_of_the_same_time(stage: str) -> None:
    """A body that trickles in, and a queue of texts and guides to be prepared: the clock runs from the request's arrival."""
    backend = ScriptedBackend()

    async def never(*_: object) -> Any:
        return await asyncio.sleep(3600)

    if stage == "preparing":
        backend.prepare = never  # type: ignore[method-assign, assignment]
    app = create_app(backend, ServerConfig(timeout=0.05))

    async def ask() -> Answer:
        answer, body = Answer(), iter([{"type": "http.request", "body": json.dumps(ASK).encode()}] if stage == "preparing" else [])

        async def receive() -> Any:
            return next(body, None) or await never()

        async def send(message: Any) -> None:
            answer.status = message.get("status", answer.status)
            answer.parts.append(message.get("body", b""))

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [(b"content-type", b"application/json")]}
        await app(scope, receive, send)
        return answer

    answer = asyncio.run(ask())
    assert (answer.status, answer.json()["error"]["code"], backend.submitted) == (504, "deadline_exceeded", 0)


def test_a_deadline_is_so_long_after_the_arrival() -> None:
    async def check() -> None:
        before = asyncio.get_running_loop().time()
        at = Deadline(60, passed=45).at
        assert at is not None
        assert before <= at - 15 <= asyncio.get_running_loop().time()
        assert Deadline(0, passed=45).at is None

    asyncio.run(check())


def test_the_deadline_ends_no_request_that_is_in_time() -> None:
    backend = ScriptedBackend()
    assert call(create_app(backend, ServerConfig(timeout=60)), ASK).status == 200
    assert backend.aborted == []


@pytest.mark.fault("E02")
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/infill", "/completion", "/v1/fim/completions"])
def test_a_body_that_does_not_arrive_is_a_408_and_the_connection_is_closed(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr("quintet.server.http.BODY_S", 0.05)
    backend = ScriptedBackend()

    async def ask() -> Answer:
        answer = Answer()

        async def receive() -> Any:
            return await asyncio.sleep(3600)

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = [(name.decode(), value.decode()) for name, value in message["headers"]]

        scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"content-type", b"application/json")]}
        await create_app(backend, ServerConfig())(scope, receive, send)
        return answer

    answer = asyncio.run(ask())
    assert (answer.status, answer.header("connection"), backend.prepared) == (408, "close", 0)


@pytest.mark.fault("E03")
@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("x" * 9000, [], 414),
        ("x" * 8000, [], 200),
        ("", [("x-a", "b")] * 101, 431),
        ("", [("x-a", "b")] * 90, 200),
        ("", [("x-a", "b" * 40_000)], 431),
        ("", [("x-" + "a" * 40_000, "b")], 431),
    ],
)
def test_long_urls_and_large_heads_are_refused(query: str, headers: list[tuple[str, str]], status: int) -> None:
    assert call(create_app(ScriptedBackend(), ServerConfig()), ASK, query=query, headers=[*JSON, *headers]).status == status


# Limits per key


def test_a_key_has_at_most_so_many_completions_at_once_and_others_are_not_held_up() -> None:
    backend = ScriptedBackend(length=None, context=10_000_000, pause=0.001)
    app = create_app(backend, ServerConfig(api_keys=("one", "two"), max_per_key=2))

    async def ask(key: str, tokens: int) -> Answer:
        return await acall(app, {"prompt": "a", "max_tokens": tokens}, headers=[*JSON, ("authorization", f"Bearer {key}")])

    async def all_() -> list[Answer]:
        running = [asyncio.ensure_future(ask("one", 1_000_000)) for _ in range(2)]
        while backend.submitted < 2:
            await asyncio.sleep(0.001)
        refused, other = await ask("one", 1), await ask("two", 1)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        return [refused, other, await ask("one", 1)]

    refused, other, after = asyncio.run(all_())
    assert (refused.status, refused.json()["error"]["code"], refused.header("retry-after")) == (429, "rate_limit_exceeded", "1")
    assert (other.status, after.status) == (200, 200)


@pytest.mark.fault("G05")
def test_each_key_has_its_own_cache_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    salts: list[str] = []
    prepare = Service.prepare

    async def noted(self: Service, request: CompletionRequest, *others: Any) -> Job:
        salts.append(request.cache_salt)
        return await prepare(self, request, *others)

    monkeypatch.setattr(Service, "prepare", noted)
    app = create_app(ScriptedBackend(), ServerConfig(api_keys=("one", "two")))
    for key in ("one", "two", "one"):
        call(app, ASK, headers=[*JSON, ("authorization", f"Bearer {key}")])
    call(create_app(ScriptedBackend(), ServerConfig()), ASK)
    assert salts[0] == salts[2] != salts[1]
    assert all(salts[:3])
    assert salts[3] == ""
    for key in ("one", "two"):  # one of the request's own separates further, and joins nobody
        call(app, {**ASK, "cache_salt": "same"}, headers=[*JSON, ("authorization", f"Bearer {key}")])
    assert len({*salts}) == 5


# Unknown fields


@pytest.mark.fault("A25")
def test_strict_refuses_the_first_unknown_field_and_others_only_get_a_warning() -> None:
    body = {**ASK, "api_base": "http://evil", "x": 1}
    lenient = call(create_app(ScriptedBackend(), ServerConfig(), source=SOURCE), body)
    assert (lenient.status, "api_base, x" in (lenient.header("warning") or "")) == (200, True)
    assert lenient.body == call(create_app(ScriptedBackend(), ServerConfig(), source=SOURCE), ASK).body
    strict = call(create_app(ScriptedBackend(), ServerConfig(strict=True)), body)
    assert (strict.status, strict.json()["error"]["param"], strict.json()["error"]["code"]) == (400, "api_base", "unknown_parameter")
    assert call(create_app(ScriptedBackend(), ServerConfig(strict=True)), ASK).status == 200


# Packed bodies

GZIP = Headers([(b"content-encoding", b"gzip")])
MSGPACK = Headers([(b"content-type", b"application/vnd.msgpack")])


def test_gzip_and_messagepack_bodies_become_the_same_json() -> None:
    packed = msgspec.msgpack.encode(ASK)
    assert as_json(gzip.compress(b"[1]"), GZIP, 100) == b"[1]"
    assert as_json(gzip.compress(b"[1,") + gzip.compress(b"2]"), GZIP, 100) == b"[1,2]"
    assert json.loads(as_json(packed, MSGPACK, 100)) == ASK
    both = Headers([*GZIP.raw, (b"content-type", b"application/vnd.msgpack; x=1")])
    assert json.loads(as_json(gzip.compress(packed), both, 100)) == ASK
    assert as_json(b"[1]", Headers([]), 100) == b"[1]"


@pytest.mark.fault("B13")
def test_a_gzip_bomb_is_refused_before_more_than_the_limit_is_unpacked() -> None:
    bomb = gzip.compress(b"\0" * (64 << 20))
    assert len(bomb) < 100_000
    lies = bomb[:-4] + (90).to_bytes(4, "little")
    for body in (bomb, lies, gzip.compress(b"x" * 60) * 2):
        with pytest.raises(BodyTooLarge):
            as_json(body, GZIP, 100)
    assert len(as_json(gzip.compress(b"x" * 100), GZIP, 100)) == 100


@pytest.mark.fault("B13")
def test_a_gzip_body_has_a_bounded_number_of_members() -> None:
    """Each is a step over all that follows it: a hundred thousand empty ones were seconds of work."""
    empty = gzip.compress(b"")
    assert as_json(empty * 99 + gzip.compress(b"[1]"), GZIP, 100) == b"[1]"
    with pytest.raises(BadRequest, match="at most 100 members"):
        as_json(empty * 100 + gzip.compress(b"[1]"), GZIP, 100)


WHOLE = gzip.compress(b'{"prompt":"a"}', mtime=0)


@pytest.mark.parametrize("body", [b"", b"{}", WHOLE[:-1], WHOLE[:-9], WHOLE[:5], WHOLE + b"x", WHOLE[:-6] + b"\0" + WHOLE[-5:]])
def test_what_is_not_whole_gzip_is_a_400(body: bytes) -> None:
    if body == b"":
        assert as_json(body, GZIP, 100) == b""  # and no JSON either
        return
    with pytest.raises(BadRequest, match="gzip"):
        as_json(body, GZIP, 100_000)


def test_a_gzip_body_whose_last_bytes_promise_too_much_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zlib, "decompressobj", None)
    for body in (gzip.compress(b"\0" * (64 << 20)), WHOLE[:-3] + b"\xff" * 3):
        with pytest.raises(BodyTooLarge, match="cut off, or it unpacks to more than the 100 bytes"):
            as_json(body, GZIP, 100)


def test_messagepack_of_hundreds_of_thousands_of_arrays_is_refused_before_they_are_made() -> None:
    many = 2**17
    with pytest.raises(BadRequest, match="more than 131072"):
        as_json(b"\x81\xa1a\xdd" + (many + 1).to_bytes(4) + b"\x90" * (many + 1), MSGPACK, 2**20)
    flat = {"prompt": "\u4e2d" * many, "ids": [0x9090] * many, "n": 1, "x": None}
    assert json.loads(as_json(msgspec.msgpack.encode(flat), MSGPACK, 2**20)) == flat


@pytest.mark.parametrize(
    "before",
    [
        *(
            b"\x81\xa1a",
            b"\x81\xa1a\x81\xa1b",
            b"\x82\xa1a\xda\x20\x00" + b"x" * 8192 + b"\xa1b\x91",
            b"\x81\xa1a" + b"\x91" * 2,
            b"\x81\xa1a" + b"\x91" * 9,
        ),
        *(b"\x81\xa1a" + b"\x91" * 900, b"\x81\xa1a\x92\xd9\x01x"),
    ],
)
def test_messagepack_of_millions_of_values_is_refused_before_they_are_made(before: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve million, which JSON takes seconds to write, in whatever they lie."""
    many = 12_000_000
    monkeypatch.setattr(unpack, "_ANY", None)
    monkeypatch.setattr(unpack, "_FLAT", None)
    with pytest.raises(BadRequest, match="at most 2621440 bytes beside its texts"):
        as_json(before + b"\xdd" + many.to_bytes(4) + b"\x01" * many, MSGPACK, 2**24)


def test_messagepack_of_more_values_than_json_may_have_is_refused_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "dumps", None)
    for value in ([[-1] * 2**19], {"b": [None] * 2**19}, [[0] * 2**18] * 2):
        with pytest.raises(BadRequest, match="524288 values"):
            as_json(msgspec.msgpack.encode({"a": value}), MSGPACK, 2**24)


def test_messagepack_of_many_long_texts_and_ids_is_json() -> None:
    images = [["data:image/png;base64," + "A" * 3_000_000] * 2, ["B" * 2_000_000, "C" * 60]]
    for body in ({"images": images}, {"prompt": ["word " * 1000] * 1024}, {"prompt": [[150_000] * 4096] * 127, "x": images[0][0]}):
        assert json.loads(as_json(msgspec.msgpack.encode(body), MSGPACK, 2**24)) == body


LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=3)


def within(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)


@settings(max_examples=200)
@given(st.dictionaries(st.text(max_size=3), st.recursive(LEAVES, within, max_leaves=6), max_size=3))
def test_messagepack_is_the_json_that_python_would_have_written(body: dict[str, object]) -> None:
    """NaN and the infinities among it, for whoever reads it to refuse by name."""
    found = as_json(msgspec.msgpack.encode(body), MSGPACK, 2**20)
    assert json.dumps(json.loads(found)) == json.dumps(body)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"\x81", b"\x91" * 100_000, b"\x81\xa1a\xc4\x01x"),
        *(b"\x81\xa1a\xa2\xed\xa0", b"\x80\x00", b"\xdf" + b"\xff" * 4, b"\x81\x91\x01\x02"),
    ],
)
def test_what_is_not_messagepack_of_json_values_is_a_400(body: bytes) -> None:
    with pytest.raises(BadRequest, match="MessagePack"):
        as_json(body, MSGPACK, 100)
