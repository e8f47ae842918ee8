"""``Idempotency-Key``: what is held of requests and answers, while they are made and after."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import tracemalloc
from typing import Any

import pytest
from tests.server.asgi import JSON, acall
from tests.server.idempotent import PROMPT, Clock, World, run
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.server import idempotency
from quintet.server.asgi import Message
from quintet.server.http import Request

pytestmark = pytest.mark.fault("E11")


@pytest.mark.parametrize("key", [None, "k"])
def test_of_a_request_that_is_computed_and_of_those_that_wait_for_it_no_body_is_held(key: str | None) -> None:
    """With a key it once was, as long as the request ran: 12 MB for each of those that may wait."""

    async def scenario() -> None:
        backend = ScriptedBackend(length=None, context=10_000_000, pause=0.01)
        app = create_app(backend, ServerConfig())
        sent = [*JSON, *([("idempotency-key", key)] if key else [])]
        headers = [(name.encode(), value.encode()) for name, value in sent]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions", "headers": headers}

        async def post() -> None:
            arriving = [b'{"prompt":"a","max_tokens":100000,"x":"' + b"y" * 4_000_000 + b'"}']

            async def receive() -> Message:
                if arriving:
                    return {"type": "http.request", "body": arriving.pop(), "more_body": False}
                return await asyncio.Event().wait()  # type: ignore[return-value]

            async def send(message: Message) -> None: ...

            await app(scope, receive, send)

        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        posts = [asyncio.create_task(post()) for _ in range(3)]
        async with asyncio.timeout(20):
            while not backend.steps or app._bodies.held:  # type: ignore[attr-defined]
                await asyncio.sleep(0.001)
            while tracemalloc.get_traced_memory()[0] - before > 3_000_000:  # a body's thread may end after its answer is there
                await asyncio.sleep(0.01)
                gc.collect()
        for one in posts:
            one.cancel()
        await asyncio.gather(*posts, return_exceptions=True)

    try:
        asyncio.run(scenario())
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("stream", [False, True])
def test_a_kept_answer_takes_no_more_memory_than_is_counted_whatever_its_request_was(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """Each once held its whole request: 51 KB with large headers, 9 KB without, where 1.5 KB were counted."""
    kept: list[idempotency.Recording] = []
    begin = idempotency.Recording.__init__

    def noted(self: idempotency.Recording, *given: Any) -> None:
        begin(self, *given)
        kept.append(self)

    monkeypatch.setattr(idempotency.Recording, "__init__", noted)
    app, large = create_app(ScriptedBackend(length=None), ServerConfig()), [(f"x-{number}", "y" * 300) for number in range(80)]

    async def post(number: int) -> None:
        headers = [*JSON, *large, ("x-request-id", f"{number:0128}"), ("idempotency-key", f"{number:0256}")]
        assert (await acall(app, {"prompt": "a", "max_tokens": 8, "stream": stream}, headers=headers)).status == 200

    async def scenario() -> None:
        await post(0)  # what is made once comes before tracing, which is slow
        tracemalloc.start()
        for number in range(1, 10):
            await post(number)
        gc.collect()
        kept.clear()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(10, 60):
            await post(number)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
        counted = sum(one.size for one in kept)
        print(f"{taken / 50:.0f} bytes for each, {counted / 50:.0f} counted")
        assert counted / 2 < taken <= counted
        requests = sum(type(one) is Request for one in gc.get_objects())
        assert requests < 5, "of those that are over none is held"

    try:
        asyncio.run(scenario())
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("leaves", [False, True])
def test_a_large_answer_is_not_held_while_it_is_made_for_one_who_reads_slowly_or_has_left(
    monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    monkeypatch.setattr(idempotency, "MOST_BYTES", 2000)
    held, record = [0], idempotency.Recording._record

    async def watched(self: idempotency.Recording, message: Message) -> None:
        await record(self, message)
        held.append(len(self._body))

    monkeypatch.setattr(idempotency.Recording, "_record", watched)

    async def scenario(world: World, clock: Clock) -> None:
        asked = {**PROMPT, "max_tokens": 2000, "stream": True}
        got: list[Message] = []
        unread, gone = [json.dumps(asked).encode()], asyncio.Event()

        async def receive() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            await asyncio.sleep(0.0005)
            got.append(message)
            if (leaves and len(got) == 5) or not message.get("more_body", True):
                gone.set()

        sent = [*JSON, ("authorization", "Bearer sk-a"), ("idempotency-key", "k")]
        headers = [(name.encode(), value.encode()) for name, value in sent]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions", "headers": headers}
        await world.app(scope, receive, send)
        while world.computed() < 2000 or world.engine.live:
            await asyncio.sleep(0.005)
        assert got[-1]["body"].endswith(b"data: [DONE]\n\n") is not leaves
        assert len(held) > 20 and max(held) < 2000, "so much of it was held at most"
        assert (await world.post(asked)).status == 409

    run(scenario)


def test_all_that_is_recorded_at_the_same_time_has_a_bound_and_a_small_answer_always_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams whose clients have left, each a tenth of a megabyte: 20 times what may be held."""
    count, most, small, frame = 12, 60_000, 2000, 1000
    monkeypatch.setattr(idempotency, "OPEN_BYTES", most)
    monkeypatch.setattr(idempotency, "SMALL_BYTES", small)
    rooms, held, take = set(), [0], idempotency.RecordingRoom.take

    def watched(self: idempotency.RecordingRoom, caller: str, more: int) -> None:
        take(self, caller, more)
        rooms.add(self)
        held.append(self.held)

    monkeypatch.setattr(idempotency.RecordingRoom, "take", watched)

    async def scenario(world: World, clock: Clock) -> None:
        long = {**PROMPT, "max_tokens": 400, "stream": True}
        for number in range(count):
            await world.post(long, f"long-{number}", leave_after=0.001)
        short = await world.post(PROMPT, "short")
        while any(room.held for room in rooms):
            await asyncio.sleep(0.005)
        assert max(held) <= most + count * (small + frame)
        assert max(held) > most / 2, "else this shows less than it says"
        again = [await world.post(long, f"long-{number}") for number in range(count)]
        assert 409 in {answer.status for answer in again} <= {200, 409}
        assert all(answer.header("x-should-retry") == "false" for answer in again if answer.status == 409)
        assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in again if answer.status == 200)
        assert (await world.post(PROMPT, "short")).body == short.body
        assert world.computed() <= 400 * count + 200, "none of them was computed again"
        assert len(rooms) == 1 and held[-1] == 0

    run(scenario)


def test_requests_that_go_on_without_their_clients_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """No number of connections was one: who sent a request, left and sent the next with another key filled the memory."""
    monkeypatch.setattr(idempotency, "BEGUN_BYTES", 70 * 1024)

    async def scenario(world: World, clock: Clock) -> None:
        long = {**PROMPT, "max_tokens": 3000, "stream": True}
        for key in ("a", "b"):
            assert not (await world.post(long, key, leave_after=0.02)).complete
        assert (await world.post(PROMPT, "c")).status == 429
        assert (await world.post(PROMPT, "c", api_key="sk-b")).status == 200, "others have their part"
        assert (await world.post(PROMPT, None)).status == 200, "without a key its work would end with its connection"
        for key in ("a", "b"):
            assert (await world.post(long, key)).complete, "they are found again, and take no more room for that"
        for key in ("c", "d", "e"):
            assert (await world.post(PROMPT, key)).status == 200

    run(scenario)


@pytest.mark.parametrize("coding", [None, "gzip"])
def test_of_a_body_as_much_is_counted_as_it_may_take_once_it_is_read(monkeypatch: pytest.MonkeyPatch, coding: str | None) -> None:
    """A hundred bytes may be as many thousands unpacked."""
    monkeypatch.setattr(idempotency, "BEGUN_BYTES", 100 * 1024)

    async def scenario(world: World, clock: Clock) -> None:
        body = json.dumps(PROMPT).encode()
        headers = [*JSON, ("authorization", "Bearer sk-a"), ("idempotency-key", "k"), *([("content-encoding", coding)] if coding else [])]
        packed = gzip.compress(body) if coding else body
        answer = await acall(world.app, packed, headers=headers, path="/cerebras/v1/completions")
        assert answer.status == (503 if coding else 200)

    run(scenario)


def test_who_records_more_than_an_even_part_leaves_room_to_others() -> None:
    room = idempotency.RecordingRoom()
    room.take("one", idempotency.OPEN_BYTES)
    assert not room.lacks("one"), "alone it has all"
    room.take("other", 1)
    assert room.lacks("one") and room.lacks("other"), "there is none for anybody"
    room.take("one", -1 - idempotency.OPEN_BYTES // 4)
    assert room.lacks("one") and not room.lacks("other"), "more than its half"
    room.take("one", -idempotency.OPEN_BYTES // 2)
    assert not room.lacks("one")
    room.take("other", -1)
    room.take("one", 1 - idempotency.OPEN_BYTES // 4)
    assert room.held == 0


def test_an_answer_whose_request_takes_as_long_to_be_put_away_as_it_is_kept_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was forgotten before it was counted as kept, so that its bytes counted for ever."""
    counted: list[idempotency.Once] = []
    begin, make = idempotency.Once.__init__, idempotency.Recording.make
    put_away = asyncio.Event()

    def noted(self: idempotency.Once, *given: Any) -> None:
        begin(self, *given)
        counted.append(self)

    async def slowly(self: idempotency.Recording, *given: Any) -> None:
        await make(self, *given)
        await put_away.wait()

    monkeypatch.setattr(idempotency.Once, "__init__", noted)
    monkeypatch.setattr(idempotency.Recording, "make", slowly)

    async def scenario(one: World, clock: Clock) -> None:
        first = await one.post(PROMPT)
        clock.now += idempotency.KEEP_S
        assert (await one.post(PROMPT)).body == first.body, "it is there as long as it is made"
        put_away.set()
        await asyncio.sleep(0)
        assert (await one.post(PROMPT, "other")).status == 200
        (once,) = counted
        assert (len(once._recordings), once._sizes.total()) == (1, once._recordings.popitem()[1].size)

    run(scenario)
