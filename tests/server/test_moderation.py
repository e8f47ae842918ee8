"""Together's ``safety_model`` over HTTP: which models it may name, and how a verdict is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.files import rows_in
from tests.server.asgi import SOURCE, Answer, acall
from tests.server.scripted import ScriptedBackend
from tests.support.guard import FORM, Guard
from tests.support.preparing import preparer_of

from quintet.backends.base import State
from quintet.config import LedgerConfig, ServerConfig
from quintet.engines.entry import Model
from quintet.engines.names import name_models
from quintet.engines.registry import Registry
from quintet.errors import TooManyRequests
from quintet.ledger.ledger import Ledger
from quintet.ledger.rows import State as RowState
from quintet.server.app import create_app
from quintet.server.asgi import ASGIApp

WORDS = (b" the", b" cat", b" sat", b" on", b" a", b" mat", b" BAD", b" and", b" more")
ASK = {"model": "cat", "prompt": "a", "max_tokens": 9, "safety_model": "guard"}
PATH = "/together/v1/completions"


def run(
    test: Callable[[ASGIApp, ScriptedBackend, Guard], Coroutine[Any, Any, None]],
    guard: Guard | None = None,
    config: ServerConfig | None = None,
    ledger: Ledger | None = None,
    **more: Any,
) -> None:
    """A test with an application that serves ``cat``, which says ``WORDS``, and ``guard``, also as an alias."""
    backend, judge = ScriptedBackend(**{"words": WORDS, "length": 9, **more}), guard or Guard()

    async def go() -> None:
        served = [
            Model("cat", lambda: backend, preparer=preparer_of),
            Model("guard", lambda: judge, preparer=preparer_of, moderation=FORM),
        ]
        registry = Registry(served, name_models([("cat",), ("guard",)], [("Meta-Llama/Llama-Guard-7b", "guard")]))
        await test(create_app(registry, config or ServerConfig(), source=SOURCE, ledger=ledger), backend, judge)
        await registry.close()

    asyncio.run(asyncio.wait_for(go(), 60))


def frames(answer: Answer) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in answer.body.decode().split("\n\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_a_key_with_its_share_of_the_guards_queue_is_told_to_come_again_unless_it_has_a_part_of_its_answer(
    stream: bool, begun: bool
) -> None:
    async def test(app: ASGIApp, _: ScriptedBackend, guard: Guard) -> None:
        refused: list[int] = []

        def full(count: int, tenant: str = "", *, begun: bool = False) -> None:
            if count and begun is waits and len(refused) < 3:
                refused.append(count)
                raise TooManyRequests("This API key has its share of the queue; try again later.")

        waits, guard.require_room = begun, full  # type: ignore[method-assign]
        answer = await acall(app, {**ASK, "stream": stream}, path=PATH)
        if begun:
            assert (answer.status, len(refused)) == (200, 3), answer.body
            assert b"error" not in answer.body
        else:
            assert (answer.status, answer.header("retry-after"), len(refused)) == (429, "1", 1), answer.body

    run(test)


def test_a_safe_answer_is_the_same_as_one_that_nobody_judged() -> None:
    async def test(app: ASGIApp, _: ScriptedBackend, guard: Guard) -> None:
        guard.bad = lambda _: False
        for more in ({}, {"stream": True}, {"n": 2, "echo": True, "logprobs": 2, "stream": True}, {"n": 2, "echo": True, "logprobs": 2}):
            judged = await acall(app, {**ASK, **more}, path=PATH)
            plain = await acall(app, {**ASK, **more, "safety_model": None}, path=PATH)
            assert judged.status == 200
            assert sorted(map(str, frames(judged))) == sorted(map(str, frames(plain)))
            assert more.get("stream") or judged.body == plain.body

    run(test)


def test_an_unsafe_output_ends_its_choice_and_says_why_in_json() -> None:
    async def test(app: ASGIApp, _: ScriptedBackend, __: Guard) -> None:
        body = (await acall(app, ASK, path=PATH)).json()
        choice = body["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (" the cat sat on", "stop")
        assert choice["moderation"] == {"model": "guard", "flagged": True, "categories": ["S2", "S10"]}
        why = "Choice 0 ends early: what follows was judged unsafe by guard: S2 (Weapons), S10 (Lies)."
        assert body["warnings"] == [{"message": why}]
        assert body["usage"] == {"prompt_tokens": 1, "completion_tokens": 9, "total_tokens": 10}

    run(test)


def test_an_unsafe_output_ends_its_choice_and_says_why_in_a_stream() -> None:
    async def test(app: ASGIApp, _: ScriptedBackend, __: Guard) -> None:
        *chunks, last, done = frames(await acall(app, {**ASK, "stream": True}, path=PATH))
        assert "".join(chunk["choices"][0]["text"] for chunk in (*chunks, last)) == " the cat sat on"
        assert all("warnings" not in chunk and "moderation" not in chunk["choices"][0] for chunk in chunks)
        assert (last["finish_reason"], last["choices"][0]["moderation"]["categories"]) == ("stop", ["S2", "S10"])
        assert "judged unsafe by guard" in last["warnings"][0]["message"]
        assert last["usage"]["completion_tokens"] == 9
        assert done == "[DONE]"

    run(test)


@pytest.mark.parametrize("first", [b" BAD", b" the"])
def test_the_prompt_s_ids_and_scores_are_told_whatever_was_found_in_the_output(first: bytes) -> None:
    async def test(app: ASGIApp, _: ScriptedBackend, __: Guard) -> None:
        body = (await acall(app, {**ASK, "return_token_ids": True, "prompt_logprobs": 1}, path=PATH)).json()
        choice = body["choices"][0]
        assert choice["prompt_token_ids"] == [97] and choice["prompt_logprobs"] == [None]
        assert choice["moderation"]["flagged"]

    run(test, words=(first, *WORDS))


@pytest.mark.parametrize("stream", [False, True])
def test_an_unsafe_prompt_is_a_400_also_where_a_stream_was_asked_for(stream: bool) -> None:
    async def test(app: ASGIApp, backend: ScriptedBackend, _: Guard) -> None:
        answer = await acall(app, {**ASK, "prompt": "so BAD", "stream": stream}, path=PATH)
        assert answer.status == 400
        assert answer.json()["error"] == {
            "message": "'prompt' was judged unsafe by guard: S2 (Weapons), S10 (Lies).",
            "type": "invalid_request_error",
            "param": "prompt",
            "code": "content_policy_violation",
        }
        assert backend.submitted == 0

    run(test)


def test_a_safety_model_is_found_as_any_model_and_must_be_served_for_it() -> None:
    async def test(app: ASGIApp, _: ScriptedBackend, __: Guard) -> None:
        for name in ("guard", "Meta-Llama/Llama-Guard-7b", "meta-llama/guard"):
            assert (await acall(app, {**ASK, "safety_model": name}, path=PATH)).status == 200
        for name in ("cat", "nobody", ""):  # one that judges nothing, one that is not there; no name, and nothing goes unjudged for it
            other = await acall(app, {**ASK, "safety_model": name}, path=PATH)
            assert other.status == 404
            told = f"The model {name!r} is not served for moderation (--moderation) here; served for it: guard, Meta-Llama/Llama-Guard-7b."
            assert other.json()["error"] == {
                "message": told, "type": "invalid_request_error", "param": "safety_model", "code": "model_not_found",
            }  # fmt: skip

    run(test)


def test_the_models_list_tells_which_ones_judge() -> None:
    async def test(app: ASGIApp, _: ScriptedBackend, __: Guard) -> None:
        listed = (await acall(app, method="GET", path="/together/v1/models")).json()
        assert {one["id"]: one["type"] for one in listed} == {
            "cat": "language", "guard": "moderation", "Meta-Llama/Llama-Guard-7b": "moderation",
        }  # fmt: skip

    run(test)


@pytest.mark.parametrize("dialect", ["openai", "fireworks", "cerebras"])
def test_other_dialects_have_no_such_field_and_say_so(dialect: str) -> None:
    async def test(app: ASGIApp, _: ScriptedBackend, guard: Guard) -> None:
        answer = await acall(
            app, ASK, path=f"/{dialect}/v1/completions" if dialect != "fireworks" else "/fireworks/inference/v1/completions"
        )
        assert answer.status == 200
        assert "safety_model" in (answer.header("warning") or "")
        assert guard.asked == []

    run(test)


def test_a_guard_that_is_not_there_is_an_error_and_never_an_unjudged_answer() -> None:
    async def loading(app: ASGIApp, backend: ScriptedBackend, _: Guard) -> None:
        answer = await acall(app, ASK, path=PATH)
        assert (answer.status, answer.json()["error"]["code"], backend.submitted) == (503, "model_loading", 0)

    async def dying(app: ASGIApp, _: ScriptedBackend, __: Guard) -> None:
        answer = await acall(app, ASK, path=PATH)
        assert (answer.status, answer.json()["error"]["code"]) == (500, "engine_failed")

    async def dying_on_the_way(app: ASGIApp, _: ScriptedBackend, __: Guard) -> None:
        *chunks, last = frames(await acall(app, {**ASK, "stream": True}, path=PATH))
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " the cat sat on"
        assert last["error"]["message"] == "The moderation model failed."

    run(loading, Guard(state=State.LOADING))
    run(dying, Guard(dies_after=0))
    run(dying, Guard(dies_after=1))
    run(dying_on_the_way, Guard(bad=lambda _: False, dies_after=2))


@pytest.mark.parametrize("judgement", [1, 2])
def test_a_client_that_leaves_ends_the_completion_and_the_judgement(judgement: int) -> None:
    """While the prompt is judged, and while an output is."""

    async def test(app: ASGIApp, backend: ScriptedBackend, guard: Guard) -> None:
        def bad(_: str) -> bool:
            if len(guard.asked) == judgement:
                guard.pause = backend.pause = 60.0
            return False

        guard.bad = bad
        answer = await acall(app, {**ASK, "stream": True}, path=PATH, leave_after=0.5)
        assert not answer.complete
        assert not guard.running
        assert guard.aborted
        assert bool(backend.aborted) == (judgement == 2)

    run(test, pause=0.01)


def test_a_guard_that_is_started_again_while_outputs_are_judged_is_waited_for_and_no_longer_than_the_deadline() -> None:
    async def back(app: ASGIApp, _: ScriptedBackend, guard: Guard) -> None:
        def bad(text: str) -> bool:
            if text != "a":  # that of an output is known, and the next one is not asked for yet
                guard.state = State.LOADING
                asyncio.get_running_loop().call_later(0.05, setattr, guard, "state", State.READY)
            return False

        guard.bad = bad
        *chunks, done = frames(await acall(app, {**ASK, "stream": True}, path=PATH))
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == b"".join(WORDS).decode()
        assert (chunks[-1]["finish_reason"], done) == ("length", "[DONE]")

    async def away(app: ASGIApp, _: ScriptedBackend, guard: Guard) -> None:
        def bad(text: str) -> bool:
            guard.state = State.LOADING if text != "a" else guard.state
            return False

        guard.bad = bad
        answer = await acall(app, ASK, path=PATH)
        assert (answer.status, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert not guard.running

    run(back)
    run(away, config=ServerConfig(timeout=0.5))


@pytest.mark.parametrize("judgement", [1, 2])
def test_the_deadline_counts_while_a_text_is_judged(judgement: int) -> None:
    async def test(app: ASGIApp, _: ScriptedBackend, guard: Guard) -> None:
        def bad(_: str) -> bool:
            if len(guard.asked) == judgement:
                guard.pause = 60.0
            return False

        guard.bad = bad
        answer = await acall(app, ASK, path=PATH)
        assert (answer.status, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert not guard.running

    run(test, config=ServerConfig(timeout=0.5))


def test_the_ledger_has_what_was_ended_and_nothing_of_what_was_refused(tmp_path: Path) -> None:
    async def test(app: ASGIApp, _: ScriptedBackend, __: Guard) -> None:
        assert (await acall(app, {**ASK, "prompt": "BAD"}, path=PATH)).status == 400
        assert (await acall(app, ASK, path=PATH)).status == 200

    file = tmp_path / "ledger.db"
    with contextlib.closing(Ledger(LedgerConfig(file))) as ledger:
        run(test, ledger=ledger)
    (row,) = [row for row in rows_in(file).values() if row]
    expected = (RowState.COMPLETED, "content_filter", 200, "cat", 1, 9)
    assert (row.state, row.finish, row.status, row.model, row.prompt, row.completion) == expected


def test_a_model_may_judge_itself() -> None:
    async def test(app: ASGIApp, _: ScriptedBackend, guard: Guard) -> None:
        guard.bad = lambda text: "BAD" in text
        answer = await acall(app, {**ASK, "model": "guard", "max_tokens": 4}, path=PATH)
        assert (answer.status, answer.json()["choices"][0]["text"]) == (200, "safe")

    run(test)


def test_judgements_are_counted() -> None:
    async def test(app: ASGIApp, _: ScriptedBackend, __: Guard) -> None:
        await acall(app, ASK, path=PATH)
        await acall(app, {**ASK, "prompt": "BAD"}, path=PATH)
        metrics = (await acall(app, method="GET", path="/metrics")).body.decode()

        def count(text: str, verdict: str) -> str:
            labels = f'engine="0",model_name="guard",text="{text}",verdict="{verdict}"'
            return next(line for line in metrics.splitlines() if line.startswith(f"quintet:moderation_judgements_total{{{labels}}}"))[-3:]

        counts = {(text, verdict): count(text, verdict) for text in ("prompt", "output") for verdict in ("safe", "unsafe", "failed")}
        assert counts == {
            ("prompt", "safe"): "1.0", ("prompt", "unsafe"): "1.0", ("prompt", "failed"): "0.0",
            ("output", "safe"): "1.0", ("output", "unsafe"): "1.0", ("output", "failed"): "0.0",
        }  # fmt: skip
        assert 'quintet:moderation_seconds_count{engine="0",model_name="guard"} 4.0' in metrics
        assert 'vllm:request_success_total{engine="0",finished_reason="content_filter",model_name="cat"} 1.0' in metrics

    run(test)


def test_who_waits_for_the_guard_and_loses_the_model_meanwhile_is_told_to_come_again() -> None:
    async def go() -> None:
        guard = Guard(state=State.LOADING)
        served = [
            Model("cat", ScriptedBackend, preparer=preparer_of),
            Model("guard", lambda: guard, lazy=True, preparer=preparer_of, moderation=FORM),
        ]
        registry = Registry(served, name_models([("cat",), ("guard",)]), patience=0.5)
        asking = asyncio.create_task(acall(create_app(registry, ServerConfig(), source=SOURCE), ASK, path=PATH))
        while registry.entries["guard"].backend is None:
            await asyncio.sleep(0.001)
        await registry.unload(registry.entries["cat"])
        guard.state = State.READY
        answer = await asking
        assert (answer.status, answer.header("retry-after")) == (503, "1")
        await registry.close()

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_server_without_a_guard_has_no_such_metrics() -> None:
    async def go() -> None:
        backend = ScriptedBackend()
        registry = Registry([Model("cat", lambda: backend, preparer=preparer_of)], name_models([("cat",)]))
        app = create_app(registry, ServerConfig(), source=SOURCE)
        assert "moderation" not in (await acall(app, method="GET", path="/metrics")).body.decode()
        await registry.close()

    asyncio.run(go())
