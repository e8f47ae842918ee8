"""``Idempotency-Key``: one computation for a request and its retries, over the whole stack, on the toy engine."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from tests.backends.contract.conftest import ready
from tests.server.asgi import JSON, Answer, acall
from tests.server.live import serving
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.backends.base import Backend
from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import EOS, toy_loader
from quintet.config import EngineConfig, ServerConfig
from quintet.server import idempotency
from quintet.server.asgi import ASGIApp, Message
from quintet.server.completions import Source
from quintet.server.http import Request

pytestmark = pytest.mark.fault("E11")

PROMPT = {"prompt": "once", "max_tokens": 24, "temperature": 1, "logit_bias": {str(EOS): -100}}


@dataclass
class World:
    """An application whose every computation is another: without a key, no two answers are equal."""

    app: ASGIApp
    engine: Backend

    async def post(self, body: object, key: str | None = "k", *, api_key: str = "sk-a", **options: Any) -> Answer:
        headers = [*JSON, ("authorization", f"Bearer {api_key}"), *([("idempotency-key", key)] if key else [])]
        return await acall(self.app, body, headers=headers, **options)

    def computed(self) -> int:
        """Tokens, by the engine's own count."""
        return self.engine.health().counts.tokens


@dataclass
class Clock:
    """Time that stands still, and a seed that is never the same."""

    now: float = 0.0
    drawn: int = 0

    def __call__(self) -> float:
        return self.now

    def seed(self) -> int:
        self.drawn += 1
        return self.drawn


@asynccontextmanager
async def world(clock: Clock) -> AsyncIterator[World]:
    async with ready(Engine(toy_loader(), EngineConfig(kv_bytes=4 << 20))) as engine:
        config = ServerConfig(api_keys=("sk-a", "sk-b"))
        yield World(create_app(engine, config, ("toy",), source=Source(seed=clock.seed, clock=clock)), engine)


def run(scenario: Callable[[World, Clock], Awaitable[None]]) -> None:
    async def go() -> None:
        clock = Clock()
        async with world(clock) as made:
            await scenario(made, clock)

    asyncio.run(go())


@pytest.mark.parametrize("stream", [False, True])
def test_a_retry_after_the_answer_gets_the_same_bytes_and_computes_nothing(stream: bool) -> None:
    async def scenario(world: World, clock: Clock) -> None:
        body = {**PROMPT, "stream": stream}
        first = await world.post(body)
        computed = world.computed()
        second = await world.post(body)
        assert (second.status, second.body) == (200, first.body)
        assert second.header("x-request-id") == first.header("x-request-id")
        assert (first.header("idempotent-replayed"), second.header("idempotent-replayed")) == (None, "true")
        assert world.computed() == computed
        other = await world.post(body, "another")
        assert other.body != first.body, "the answers of two computations differ, so equal ones are one"

    run(scenario)


@pytest.mark.parametrize("stream", [False, True])
def test_requests_at_the_same_time_share_one_computation(stream: bool) -> None:
    async def scenario(world: World, clock: Clock) -> None:
        body = {**PROMPT, "stream": stream}
        answers = await asyncio.gather(*(world.post(body) for _ in range(8)))
        assert len({answer.body for answer in answers}) == 1
        assert sum(answer.header("idempotent-replayed") == "true" for answer in answers) == 7
        assert world.computed() < 2 * (len(PROMPT["prompt"]) + 24)  # type: ignore[arg-type]

    run(scenario)


def test_who_was_cut_off_in_a_stream_finds_all_of_it_on_coming_again() -> None:
    async def scenario(world: World, clock: Clock) -> None:
        body = {**PROMPT, "max_tokens": 3000, "stream": True}
        cut = await world.post(body, leave_after=0.05)
        assert not cut.complete
        again = await world.post(body)
        assert again.complete and again.body.startswith(cut.body)
        assert again.body.endswith(b"data: [DONE]\n\n")

    run(scenario)


def test_a_key_with_another_request_is_an_error_and_not_the_answer_of_the_first() -> None:
    async def scenario(world: World, clock: Clock) -> None:
        assert (await world.post(PROMPT)).status == 200
        for changed in ({**PROMPT, "prompt": "twice"}, {**PROMPT, "stream": True}):
            refused = await world.post(changed)
            assert refused.status == 422
            assert refused.json()["error"]["code"] == "idempotency_conflict"
            assert refused.header("x-should-retry") == "false"
        assert (await world.post(PROMPT, path="/together/v1/completions")).status == 422, "other words, another request"

    run(scenario)


def test_a_key_means_nothing_to_another_api_key() -> None:
    async def scenario(world: World, clock: Clock) -> None:
        mine, theirs = await world.post(PROMPT), await world.post(PROMPT, api_key="sk-b")
        assert mine.body != theirs.body
        assert theirs.header("idempotent-replayed") is None
        assert (await world.post({**PROMPT, "prompt": "theirs"}, api_key="sk-b")).status == 422

    run(scenario)


@pytest.mark.parametrize("path", ["/v1/completions", "/completion", "/v1/fim/completions"])
def test_an_error_is_not_kept(path: str) -> None:
    """What was refused was not computed: when the reason is gone, the same key is good for the answer."""

    async def scenario(world: World, clock: Clock) -> None:
        good = {"prompt": "once", "max_tokens": 4}
        for _ in range(2):
            wrong = await world.post({**good, "temperature": -7}, path=path)
            assert (wrong.status, wrong.header("idempotent-replayed")) == (400, None)
        for replayed in (None, "true"):
            right = await world.post(good, path=path)
            assert (right.status, right.header("idempotent-replayed")) == (200, replayed)

    run(scenario)


def test_all_who_wait_for_a_computation_that_fails_are_told_in_their_own_words() -> None:
    async def scenario() -> None:
        app = create_app(ScriptedBackend(break_after=1), ServerConfig())
        headers = [*JSON, ("idempotency-key", "k")]
        answers = await asyncio.gather(*(acall(app, {"prompt": "a"}, headers=headers) for _ in range(3)))
        assert [answer.status for answer in answers] == [500] * 3
        assert all(answer.json()["error"] for answer in answers)

    asyncio.run(scenario())


@pytest.mark.parametrize("key", ["", " ", "a b", "é", "x" * 257, "a\x01"])
def test_what_is_no_key_is_refused_by_name(key: str) -> None:
    async def scenario(world: World, clock: Clock) -> None:
        refused = await acall(world.app, PROMPT, headers=[*JSON, ("authorization", "Bearer sk-a"), ("idempotency-key", key)])
        assert refused.status == 400
        assert "Idempotency-Key" in refused.json()["error"]["message"]
        assert world.computed() == 0

    run(scenario)


def test_an_answer_is_kept_for_an_hour() -> None:
    async def scenario(world: World, clock: Clock) -> None:
        first = await world.post(PROMPT)
        clock.now = idempotency.KEEP_S - 1
        assert (await world.post(PROMPT)).body == first.body
        clock.now = idempotency.KEEP_S + 1
        assert (await world.post(PROMPT)).body != first.body

    run(scenario)


def test_one_that_takes_longer_than_an_hour_keeps_no_other_answer_from_being_forgotten() -> None:
    async def scenario() -> None:
        backend, clock, gone = ScriptedBackend(length=None, context=10_000_000, pause=0.01), Clock(), asyncio.Event()
        app = create_app(backend, ServerConfig(), source=Source(seed=clock.seed, clock=clock))

        async def post(key: str, most: int) -> Answer:
            return await acall(app, {"prompt": "a", "max_tokens": most}, headers=[*JSON, ("idempotency-key", key)], gone=gone)

        long = asyncio.create_task(post("long", 1_000_000))
        while not backend.steps:
            await asyncio.sleep(0.001)
        for now, replayed in ((0.0, None), (idempotency.KEEP_S - 1, "true"), (idempotency.KEEP_S + 1, None)):
            clock.now = now
            assert (await post("short", 2)).header("idempotent-replayed") == replayed
        gone.set()
        await asyncio.gather(long, return_exceptions=True)

    asyncio.run(scenario())


def test_what_a_web_page_may_see_of_an_answer_that_is_given_again_goes_by_the_page_that_asks_now() -> None:
    async def scenario() -> None:
        app = create_app(ScriptedBackend(), ServerConfig(cors_origins=("https://a.example", "https://b.example")))
        for origin in ("", "https://a.example", "https://b.example"):
            headers = [*JSON, ("idempotency-key", "k"), *([("origin", origin)] if origin else [])]
            answer = await acall(app, {"prompt": "a"}, headers=headers)
            named = [value for name, value in answer.headers if name == "access-control-allow-origin"]
            assert (answer.status, named) == (200, [origin] if origin else [])

    asyncio.run(scenario())


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
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 3_000_000
        for one in posts:
            one.cancel()
        await asyncio.gather(*posts, return_exceptions=True)

    try:
        asyncio.run(scenario())
    finally:
        tracemalloc.stop()


def test_who_keeps_the_most_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World, clock: Clock) -> None:
        mine = await world.post(PROMPT)
        monkeypatch.setattr(idempotency, "KEEP_BYTES", 20_000)
        for number in range(30):
            await world.post(PROMPT, f"flood-{number}", api_key="sk-b")
        assert (await world.post(PROMPT)).body == mine.body
        last = await world.post(PROMPT, "flood-29", api_key="sk-b")
        oldest = await world.post(PROMPT, "flood-0", api_key="sk-b")
        assert (last.header("idempotent-replayed"), oldest.header("idempotent-replayed")) == ("true", None)

    run(scenario)


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


@pytest.mark.parametrize("stream", [False, True])
def test_a_large_kept_answer_is_sent_in_pieces_and_a_streams_frames_whole(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    monkeypatch.setattr(idempotency, "PIECE_BYTES", 1000)

    async def scenario(world: World, clock: Clock) -> None:
        body = {**PROMPT, "max_tokens": 1000, "stream": stream}
        first, again = await world.post(body), await world.post(body)
        assert again.body == first.body and again.complete
        assert len(again.parts) >= len(again.body) / 1000 and max(map(len, again.parts)) <= 1000
        assert not stream or all(part.endswith(b"\n\n") for part in again.parts)

    run(scenario)


def test_an_answer_too_large_to_keep_is_given_whole_and_never_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MOST_BYTES", 2000)

    async def scenario(world: World, clock: Clock) -> None:
        body = {**PROMPT, "max_tokens": 3000}
        assert (await world.post(body)).json()["usage"]["completion_tokens"] == 3000
        computed = world.computed()
        refused = await world.post(body)
        assert (refused.status, refused.header("x-should-retry")) == (409, "false")
        assert world.computed() == computed

    run(scenario)


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
    rooms, held, take = set(), [0], idempotency.Room.take

    def watched(self: idempotency.Room, caller: str, more: int) -> None:
        take(self, caller, more)
        rooms.add(self)
        held.append(self.held)

    monkeypatch.setattr(idempotency.Room, "take", watched)

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


def test_who_records_more_than_an_even_part_leaves_room_to_others() -> None:
    room = idempotency.Room()
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


def test_the_openai_sdk_gets_the_same_completion_twice() -> None:
    with (
        serving(lambda: create_app(ScriptedBackend(), ServerConfig())) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x") as client,
    ):
        ask = {"model": "scripted", "prompt": "a", "extra_headers": {"Idempotency-Key": "an-order"}}
        first, second = client.completions.create(**ask), client.completions.create(**ask)  # type: ignore[call-overload]
        assert first == second
        assert client.completions.create(**{**ask, "extra_headers": {}}).id != first.id  # type: ignore[call-overload]
