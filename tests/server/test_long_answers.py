"""Answers with many log-probabilities: rendered off the event loop a stretch at a time, sent in parts, the same as any other."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.asgi import JSON, Answer, acall
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.dialects import beyond, chunks, columns, wire
from quintet.dialects.base import Identity
from quintet.dialects.catalog import PROVIDERS
from quintet.dialects.columns import STRETCH
from quintet.dialects.completion import wire as llama
from quintet.dialects.fireworks import wire as fireworks
from quintet.dialects.together import wire as together
from quintet.events import ChoiceDelta, ChoiceDone, Event, Finish, Finished, TokenText, Usage
from quintet.server import completions, gate
from quintet.server.asgi import Message
from quintet.server.portions import INLINE_ENTRIES, Portion, portions

pytestmark = pytest.mark.fault("B06")
PATHS = {
    "/openai/v1/completions": {"logprobs": 5},
    "/fireworks/inference/v1/completions": {"logprobs": True, "top_logprobs": 5},
    "/together/v1/completions": {"logprobs": 5},
    "/cerebras/v1/completions": {"logprobs": 5},
}
SCOPE = {"type": "http", "method": "POST", "path": "/v1/completions"}
LONG = "x" * (5 * INLINE_ENTRIES)
MUCH = "x" * (80 * INLINE_ENTRIES)


def ask(path: str, **fields: Any) -> Answer:
    async def go() -> Answer:
        app = create_app(ScriptedBackend(context=100_000, length=None), ServerConfig())
        return await acall(app, {"prompt": LONG, "max_tokens": 2, "echo": True, "n": 3, **PATHS[path], **fields}, path=path)

    return asyncio.run(go())


@pytest.mark.parametrize("path", [path for path in PATHS if path != "/together/v1/completions"])
def test_a_long_body_comes_in_parts_of_a_choice_each_and_tells_its_length(path: str) -> None:
    answer = ask(path)
    assert answer.header("content-length") == str(len(answer.body))
    assert len([part for part in answer.parts if len(part) > 10_000]) == 3
    assert len(answer.json()["choices"]) == 3


@pytest.mark.parametrize("fields", [{}, {"echo": False, "prompt_logprobs": 5}, {"echo": False, "return_token_ids": True}])
def test_a_body_that_is_long_by_other_things_comes_in_parts_too(fields: dict[str, Any]) -> None:
    """An echo's text, its prompt's log-probabilities, ids."""
    answer = ask("/openai/v1/completions", prompt=MUCH, logprobs=None, **fields)
    assert answer.header("content-length") == str(len(answer.body))
    assert len([part for part in answer.parts if len(part) > 10_000]) == 3
    assert len(answer.json()["choices"]) == 3


def test_answers_of_llama_server_come_in_parts_of_one_each() -> None:
    async def go() -> Answer:
        app = create_app(ScriptedBackend(context=100_000), ServerConfig())
        return await acall(app, {"prompt": MUCH, "n_predict": 2 * INLINE_ENTRIES, "n_probs": 5, "n_cmpl": 3}, path="/completion")

    answer = asyncio.run(go())
    assert len([part for part in answer.parts if len(part) > 10_000]) == 3
    assert [one["index"] for one in answer.json()] == [0, 1, 2]


@pytest.mark.parametrize(("prompt", "count", "inline"), [("x", 2, True), ("x", 100, False), (MUCH, 2, False)])
def test_the_ends_of_llama_servers_streams_are_rendered_in_a_thread_where_they_come_to_much(
    prompt: str, count: int, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come together, and each has the prompt's text: 31 MB held everyone up for a twentieth of a second."""
    threads, end = set[bool](), llama.LlamaRenderer._end

    def noted(*arguments: Any) -> dict[str, object]:
        threads.add(threading.current_thread() is threading.main_thread())
        return end(*arguments)

    monkeypatch.setattr(llama.LlamaRenderer, "_end", noted)

    async def go() -> Answer:
        app = create_app(ScriptedBackend(context=100_000), ServerConfig())
        return await acall(app, {"prompt": prompt, "n_predict": 2, "n_cmpl": count, "stream": True}, path="/completion")

    assert asyncio.run(go()).body.count(b'"stop":true') == count
    assert threads == {inline}


def test_the_text_of_a_choice_is_encoded_when_its_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An echo of half a megabyte, a thousand times over, would be half a gigabyte in memory."""
    seen: list[str] = []

    def noted(value: object) -> bytes:
        seen.extend([value] if isinstance(value, str) else [])
        return wire.encode(value)

    monkeypatch.setattr(chunks, "encode", noted)
    parsed = PROVIDERS["openai"].dialect.parse(b'{"prompt": "ab", "n": 3, "max_tokens": 0, "echo": true}', 1)
    renderer = PROVIDERS["openai"].dialect.renderer(
        parsed.request, Identity(id="1", created=1, model="m", fingerprint="fp"), parsed.options
    )
    for index in range(3):
        renderer.add(ChoiceDelta(index, "ab"))
        renderer.add(ChoiceDone(index, Finish.LENGTH))
    renderer.add(Finished(Usage(2, 0, cached_tokens=0)))
    for _ in range(2):  # the length first, and then what is sent
        parts = renderer.body()
        assert [(next(parts) != b"", len(seen)) for _ in range(4)] == [(True, 0), (True, 1), (True, 2), (True, 3)]
        seen.clear()


def test_a_client_that_leaves_in_the_middle_of_a_long_body_gets_no_more_of_it() -> None:
    """What is left is not even made."""

    async def go() -> Answer:
        answer, gone = Answer(), asyncio.Event()
        body = iter([{"type": "http.request", "body": json.dumps({"prompt": LONG, "echo": True, "logprobs": 5, "n": 9}).encode()}])

        async def receive() -> Any:
            return next(body, None) or (await gone.wait() and {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            answer.parts.append(message.get("body", b""))
            if len(answer.parts[-1]) > 10_000:
                gone.set()
                await asyncio.sleep(0.001)

        headers = [(b"content-type", b"application/json")]
        await create_app(ScriptedBackend(context=10_000), ServerConfig())({**SCOPE, "headers": headers}, receive, send)
        return answer

    assert len([part for part in asyncio.run(go()).parts if len(part) > 10_000]) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_only_a_few_entries_at_once_are_rendered_on_the_event_loop(path: str, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn of the loop renders what an engine step made for a choice; an echo is rendered in a thread, and once for its samples."""
    rendered = {True: 0, False: 0}

    map_of, entry_of = wire.top_map, fireworks._entry

    def count() -> None:
        rendered[threading.current_thread() is threading.main_thread()] += 1

    def top_map(token: TokenText) -> dict[str, float] | None:
        count()
        return map_of(token)

    def entry(token: TokenText, top: int) -> fireworks.Entry:
        count()
        return entry_of(token, top)

    for module in (wire, fireworks, together):
        monkeypatch.setattr(module, "top_map", top_map)
    monkeypatch.setattr(fireworks, "_entry", entry)
    assert ask(path, stream=stream).status == 200
    assert rendered[True] <= 3 * 2
    assert rendered[False] == len(LONG)


def test_scores_of_a_prompt_are_rendered_in_a_thread_and_a_stretch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: list[int] = []
    threads: set[bool] = set()

    def measured(value: object) -> bytes:
        at_once.append(len(value) if isinstance(value, list) else 0)
        threads.add(threading.current_thread() is threading.main_thread())
        return wire.encode(value)

    monkeypatch.setattr(beyond, "encode", measured)
    assert ask("/openai/v1/completions", echo=False, logprobs=None, prompt_logprobs=5).status == 200
    assert (max(at_once), threads) == (STRETCH, {False})


@pytest.mark.parametrize("path", PATHS)
def test_no_call_of_the_encoder_takes_more_than_a_stretch(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the interpreter while it works, in whichever thread."""
    seen: list[int] = []

    def measured(value: object) -> bytes:
        seen.append(len(value) if isinstance(value, list) else 0)
        return wire.encode(value)

    monkeypatch.setattr(columns, "encode", measured)
    ask(path)
    assert max(seen) <= STRETCH


@pytest.mark.parametrize("extra", [{}, {"return_token_ids": True}])
def test_an_echoed_prompt_that_goes_with_the_first_token_is_encoded_in_a_thread_and_once(
    extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the renderer alone, whatever else is added to its chunk."""
    sizes: dict[bool, list[int]] = {True: [], False: []}

    def measured(value: object) -> bytes:
        sizes[threading.current_thread() is threading.main_thread()].append(len(data := wire.encode(value)))
        return data

    for module in (together, beyond):
        monkeypatch.setattr(module, "encode", measured)
    answer = ask("/together/v1/completions", stream=True, prompt=LONG, **extra)
    first = json.loads(answer.body[6:].split(b"\n\n", 1)[0])
    assert (answer.status, first["prompt"][0]["text"]) == (200, LONG)
    assert len(first["prompt"][0]["logprobs"]["token_ids"]) == len(LONG)
    assert [size > 100_000 for size in sizes[False]] == [True]
    assert max(sizes[True]) < 1_000 + 6 * len(LONG) * bool(extra)  # with the ids, which are asked for there


def parts(batch: Sequence[Event]) -> list[tuple[int, bool]]:
    return [(len(portion), long) for portion, long in portions(batch, lambda _: 0)]


def test_what_takes_long_is_rendered_by_itself_and_the_rest_together_as_far_as_it_is_not_much() -> None:
    def delta(count: int) -> ChoiceDelta:
        return ChoiceDelta(0, "", (TokenText(1, "", b"", None, (), 0),) * count)

    few, many = delta(INLINE_ENTRIES // 4), delta(INLINE_ENTRIES)
    assert parts([few, few, ChoiceDone(0, Finish.STOP)]) == [(3, False)]
    assert parts([few, many, many, few, few]) == [(1, False), (1, True), (1, True), (2, False)]
    assert parts([many]) == [(1, True)]
    assert parts([few] * 5 + [delta(0)]) == [(3, False), (3, False)]
    assert parts([ChoiceDelta(index, "x") for index in range(128)]) == [(128, False)]
    entries, ids = many.tokens, (1,) * (16 * INLINE_ENTRIES)
    long = [ChoiceDelta(0, "x" * (64 * INLINE_ENTRIES)), ChoiceDelta(0, "", (), ids), ChoiceDelta(0, "", (), (), entries)]
    assert parts([few, *long, few]) == [(1, False), (1, True), (1, True), (1, True), (1, False)]


def test_an_end_weighs_what_its_renderer_says_once_those_before_it_are_rendered() -> None:
    weights = {0: INLINE_ENTRIES - 1, 1: 1, 2: INLINE_ENTRIES}
    rendered: list[Event] = []

    def weight(event: Event) -> float:
        return weights[event.index] if isinstance(event, ChoiceDone) else INLINE_ENTRIES * len(rendered)

    made = []
    for portion, long in portions([*(ChoiceDone(index, Finish.LENGTH) for index in range(3)), Finished(Usage(1, 3))], weight):
        rendered += portion
        made.append((len(portion), long))
    assert made == [(1, False), (1, False), (1, True), (1, True)]


@pytest.mark.parametrize("extra", [{}, {"stop_token_ids": [5]}])
@pytest.mark.parametrize("stream", [False, True])
def test_raw_outputs_are_rendered_in_a_thread_one_by_one_and_nobody_reads_them(
    stream: bool, extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All samples end in one engine step, and what adds to a chunk need not know the raw output in it."""
    alone: list[tuple[int, bool]] = []
    read: list[int] = []

    def apart(chunk: fireworks.Completion) -> columns.Apart:
        made = part(chunk)
        if made.value is not None:
            alone.append((len(made.value), threading.current_thread() is threading.main_thread()))
        return made

    def measured(value: object) -> bytes:
        read.append(len(data := wire.encode(value)))
        return data

    def at_once(batch: Sequence[Event], weight: Any) -> Iterator[Portion]:
        for portion in portions(batch, weight):
            ends = sum(isinstance(event, ChoiceDone) for event in portion.events)
            assert ends <= 1 and portion.long == any(isinstance(event, ChoiceDone | Finished) for event in portion.events)
            yield portion

    part = fireworks._apart
    monkeypatch.setattr(fireworks, "_apart", apart)
    monkeypatch.setattr(beyond, "encode", measured)
    monkeypatch.setattr(completions, "portions", at_once)
    asked = {"prompt": "a", "max_tokens": 2 * INLINE_ENTRIES, "echo": False, "raw_output": True, "stream": stream, **extra}
    answer = ask("/fireworks/inference/v1/completions", **asked)
    assert answer.status == 200
    assert [(size > 100_000, main) for size, main in alone] == [(True, False)] * 3 * stream
    assert max(read, default=0) < 1_000


@settings(max_examples=200)
@given(st.lists(st.integers(0, 2 * INLINE_ENTRIES), max_size=40))
def test_portions_are_the_batch_in_its_order_and_none_on_the_loop_is_large(sizes: list[int]) -> None:
    one = TokenText(1, "", b"", None, (), 0)
    batch = [ChoiceDelta(index, "", (one,) * size) for index, size in enumerate(sizes)]
    made = [*portions(batch, lambda _: 0)]
    assert [event for portion, _ in made for event in portion] == batch
    inline = [[event for event in portion if isinstance(event, ChoiceDelta)] for portion, long in made if not long]
    assert all(sum(len(event.tokens) + 1 for event in portion) <= INLINE_ENTRIES for portion in inline)


def test_a_long_stream_is_what_the_json_says() -> None:
    frames = ask("/openai/v1/completions", stream=True).body.split(b"\n\n")
    chunks = [json.loads(frame[6:]) for frame in frames if frame.startswith(b"data: {")]
    whole = ask("/openai/v1/completions").json()
    for choice in whole["choices"]:
        mine = [one for chunk in chunks for one in chunk["choices"] if one["index"] == choice["index"]]
        assert "".join(one["text"] for one in mine) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [value for one in mine for value in one["logprobs"][name]] == values


@pytest.mark.parametrize(("keys", "sent", "status"), [((), "", 503), (("a", "b"), "a", 429)])
def test_large_answers_have_room_for_a_few_and_their_keys_share_it(
    keys: tuple[str, ...], sent: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LARGE", 50)
    body = {"prompt": "x" * 98, "max_tokens": 2, "echo": True, "logprobs": 1}  # 200 log-probabilities of 1,000

    async def go() -> None:
        app = create_app(ScriptedBackend(context=1000), ServerConfig(api_keys=keys, max_logprobs=200))
        go_on = asyncio.Event()
        begun = 0

        def auth(key: str) -> list[tuple[str, str]]:
            return [*JSON, ("authorization", f"Bearer {key}")]

        async def slow() -> None:
            """Whoever does not read."""
            messages: list[Message] = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

            async def receive() -> Message:
                return messages.pop() if messages else await asyncio.get_running_loop().create_future()

            async def send(message: Message) -> None:
                nonlocal begun
                if message["type"] == "http.response.start":
                    assert message["status"] == 200
                    begun += 1
                await go_on.wait()

            headers = [(name.encode(), value.encode()) for name, value in auth(sent)]
            await app({**SCOPE, "headers": headers}, receive, send)

        most = 2 if keys else 5
        waiting = [asyncio.create_task(slow()) for _ in range(most)]
        async with asyncio.timeout(60):
            while begun < most:
                await asyncio.sleep(0.01)
        refused = await acall(app, body, headers=auth(sent))
        assert (refused.status, bool(refused.header("retry-after"))) == (status, True)
        small = await acall(app, {**body, "prompt": "x"}, headers=auth(sent))
        streamed = await acall(app, {**body, "stream": True}, headers=auth(sent))
        others = await acall(app, body, headers=auth("b")) if keys else small
        assert [one.status for one in (small, streamed, others)] == [200] * 3
        go_on.set()
        await asyncio.gather(*waiting)
        assert (await acall(app, body, headers=auth(sent))).status == 200

    asyncio.run(go())
