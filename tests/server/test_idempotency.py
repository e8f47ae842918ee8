"""``Idempotency-Key``: one computation for a request and its retries, over the whole stack, on the toy engine."""

from __future__ import annotations

import asyncio
import gzip
import json

import openai
import pytest
from tests.server.asgi import JSON, Answer, acall
from tests.server.idempotent import PROMPT, Clock, World, run
from tests.server.live import serving
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.server import idempotency
from quintet.server.source import Source

pytestmark = pytest.mark.fault("E11")


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
        assert (await world.post(b'{"n":1,"prompt":"a"}', "short")).status == 200
        assert (await world.post(b'{"n":2,"prompt":"a"}', "short")).status == 422, "each byte of a plain body counts"
        for changed in ({**PROMPT, "prompt": "twice"}, {**PROMPT, "stream": True}):
            refused = await world.post(changed)
            assert refused.status == 422
            assert refused.json()["error"]["code"] == "idempotency_conflict"
            assert refused.header("x-should-retry") == "false"
        assert (await world.post(PROMPT, path="/together/v1/completions")).status == 422, "other words, another request"

    run(scenario)


def test_a_retry_that_is_compressed_anew_is_the_same_request() -> None:
    """The head of a gzip body says when it was made."""

    async def scenario(world: World, clock: Clock) -> None:
        async def post(body: object, made: int) -> Answer:
            packed = gzip.compress(json.dumps(body).encode(), mtime=made)
            headers = [*JSON, ("authorization", "Bearer sk-a"), ("idempotency-key", "k"), ("content-encoding", "gzip")]
            return await acall(world.app, packed, headers=headers, path="/cerebras/v1/completions")

        first, second = await post(PROMPT, 1), await post(PROMPT, 2)
        assert (second.status, second.body) == (200, first.body)
        assert (first.header("idempotent-replayed"), second.header("idempotent-replayed")) == (None, "true")
        assert (await post({**PROMPT, "prompt": "twice"}, 1)).status == 422

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


def test_the_openai_sdk_gets_the_same_completion_twice() -> None:
    with (
        serving(lambda: create_app(ScriptedBackend(), ServerConfig())) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x") as client,
    ):
        ask = {"model": "scripted", "prompt": "a", "extra_headers": {"Idempotency-Key": "an-order"}}
        first, second = client.completions.create(**ask), client.completions.create(**ask)  # type: ignore[call-overload]
        assert first == second
        assert client.completions.create(**{**ask, "extra_headers": {}}).id != first.id  # type: ignore[call-overload]
