"""Several models behind one port: each answers under its names, and none is in another's way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.server.asgi import JSON, SOURCE, Answer, acall, call
from tests.server.scripted import ScriptedBackend

from quintet.backends.base import State
from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import toy_loader
from quintet.config import EngineConfig, ServerConfig
from quintet.dialects.catalog import PROVIDERS
from quintet.engines.entry import Model
from quintet.engines.names import name_models
from quintet.engines.registry import Registry
from quintet.errors import ModelError
from quintet.logs import JsonForm
from quintet.server.app import create_app
from quintet.server.asgi import Message, Receive, Scope, Send

ASK = {"prompt": "a", "max_tokens": 2}
ADMIN = ("authorization", "Bearer admin")


def models(engines: dict[str, ScriptedBackend], *aliases: tuple[str, str], lazy: bool = False, **settings: Any) -> Registry:
    """Each engine under its name; a lazy one is a new one's stand-in each time it is loaded."""

    def start(name: str) -> Callable[[], Any]:
        return lambda: engines[name]

    made = [Model(name, start(name), 1000, lazy=lazy) for name in engines]
    return Registry(made, name_models([(name,) for name in engines], aliases), **settings)


def app(engines: dict[str, ScriptedBackend], *aliases: tuple[str, str], **config: Any) -> Any:
    return create_app(models(engines, *aliases), ServerConfig(**config), source=SOURCE)


def two() -> dict[str, ScriptedBackend]:
    return {"cat": ScriptedBackend(), "dog": ScriptedBackend(words=(b" a", b" dog"), context=32)}


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def test_the_name_of_a_request_chooses_its_engine_and_none_the_first() -> None:
    served = app(two(), ("gpt", "dog"), ("llama-*", "dog"))
    texts = {name: call(served, {"model": name, **ASK}).json() for name in ("", "cat", "dog", "gpt", "llama-3.1-8b")}
    assert [(one["model"], one["choices"][0]["text"]) for one in texts.values()] == [
        ("cat", " the cat"), ("cat", " the cat"), ("dog", " a dog"), ("gpt", " a dog"), ("llama-3.1-8b", " a dog"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_dialect_lists_all_names_and_refuses_others_in_its_own_words(name: str) -> None:
    served = app(two(), ("gpt", "dog"), ("llama-*", "dog"), dialect=name)
    listed = call(served, method="GET", path="/v1/models").json()
    assert [one["id"] for one in (listed if isinstance(listed, list) else listed["data"])] == ["cat", "dog", "gpt"]
    assert call(served, method="GET", path="/v1/models/gpt").json()["id"] == "gpt"
    assert call(served, method="GET", path="/v1/models/llama-7").json()["id"] == "llama-7"
    asked, shown = call(served, {"model": "cow", **ASK}), call(served, method="GET", path="/v1/models/cow")
    assert (asked.status, shown.status) == (404, 404)
    assert asked.body == shown.body
    assert "not served here; served: cat, dog, gpt." in asked.body.decode()


FORMS = [
    *("accounts/fireworks/models/dog", "accounts/me/models/dog#my-deployment", "accounts/me/deployments/dog", "dog#my-deployment"),
    "accounts/fireworks/models/dog#accounts/me/deployments/d1",
]


@pytest.mark.parametrize(("dialect", "name"), [*(("fireworks", name) for name in FORMS), ("together", "org/dog"), ("novita", "org/dog")])
def test_a_providers_form_of_a_name_is_that_model_and_is_answered_by_that_name(dialect: str, name: str) -> None:
    served = app(two(), dialect=dialect)
    answer = call(served, {"model": name, **ASK}).json()
    assert answer["model"] == name
    assert answer["choices"][0]["text"] == " a dog"


NAMES = (
    *("llama3.1-8b", "llama-3.3-70b", "qwen-3-32b", "qwen-3-235b-a22b-instruct-2507", "qwen-3-235b-a22b-thinking-2507"),
    "qwen-3-coder-480b",
)
"""On Cerebras' page."""


@pytest.mark.parametrize("name", NAMES)
def test_the_names_of_cerebras_page_are_whatever_is_served(name: str) -> None:
    served = app(two(), dialect="cerebras")
    answer = call(served, {"model": name, **ASK}).json()
    assert (answer["model"], answer["choices"][0]["text"]) == (name, call(served, {**ASK}).json()["choices"][0]["text"])
    assert call(served, method="GET", path=f"/v1/models/{name}").json()["id"] == name
    assert call(served, {"model": f"{name}x", **ASK}).status == 404
    assert call(app(two(), dialect="openai"), {"model": name, **ASK}).status == 404


OTHERS = [("openai", "org/dog"), ("cerebras", "org/dog"), ("fireworks", "org/dog"), ("openai", "dog#d"), ("together", "a/b/dog")]


@pytest.mark.parametrize(("dialect", "name"), OTHERS)
def test_a_form_that_is_not_the_providers_stays_unknown(dialect: str, name: str) -> None:
    assert call(app(two(), dialect=dialect), {"model": name, **ASK}).status == 404


EXAMPLES = {
    "openai": ("VAR_completion_model_id", "gpt-3.5-turbo-instruct"),
    "fireworks": ("accounts/fireworks/models/llama-v3p1-8b-instruct",),
    "together": ("mistralai/Mixtral-8x7B-Instruct-v0.1", "meta-llama/Llama-2-70b-hf"),
    "cerebras": ("llama3.1-8b",),
    "novita": ("<string>",),
}


@pytest.mark.parametrize(("dialect", "name"), [(dialect, name) for dialect, names in EXAMPLES.items() for name in names])
def test_a_model_name_of_a_providers_page_works_with_one_alias_and_is_answered(dialect: str, name: str) -> None:
    served = app(two(), (name, "dog"), dialect=dialect)
    answer = call(served, {"model": name, **ASK}).json()
    assert (answer["model"], answer["choices"][0]["text"]) == (name, " a dog")


def test_one_pattern_serves_all_of_an_accounts_models() -> None:
    served = app(two(), ("accounts/fireworks/models/*", "dog"), dialect="fireworks")
    name = "accounts/fireworks/models/llama-v3p1-8b-instruct"
    assert call(served, {"model": name, **ASK}).json()["model"] == name
    assert call(served, {"model": "accounts/other/models/x", **ASK}).status == 404


def test_what_is_told_of_tokens_is_the_models_own() -> None:
    engines = two()
    served = app(engines)
    words = len(engines["dog"].capabilities.pieces)
    assert call(served, {"model": "dog", "prompt": "a"}, path="/tokenize").json()["max_model_len"] == 32
    refused = call(served, {"model": "dog", "tokens": [words]}, path="/detokenize")
    assert (refused.status, refused.json()["error"]["param"]) == (400, "tokens")
    assert call(served, {"model": "cat", "tokens": [words]}, path="/detokenize").json()["prompt"] == " sat"
    for query, status in (("", 200), ("model=dog", 200), ("model=cow", 404)):
        assert call(served, method="GET", path="/tokenizer_info", query=query).status == status


def test_an_engine_that_fails_or_loads_leaves_the_others_serving() -> None:
    for state, status in ((State.DEAD, 500), (State.LOADING, 503)):
        engines = two()
        served = app(engines)
        engines["dog"].state = state
        assert [call(served, {"model": name, **ASK}).status for name in ("cat", "dog")] == [200, status]
        told = call(served, method="GET", path="/health")
        assert (told.status, told.json()["status"]) == (503, state.value)
        each = call(served, method="GET", path="/health/models").json()["models"]
        assert each == {"cat": "ready", "dog": state.value}
        assert [call(served, method="GET", path="/health/models", query=f"model={name}").status for name in ("cat", "dog")] == [200, 503]
        assert call(served, method="GET", path="/livez").status == 200


def test_nobody_learns_the_names_of_models_without_a_key() -> None:
    served = app(two(), api_keys=("key",))
    assert call(served, method="GET", path="/health").json() == {"status": "ok"}
    assert call(served, method="GET", path="/health/models").status == 401


def test_the_access_log_has_the_models_name_and_never_one_that_a_client_made_up(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "quintet.access"):
        call(app(two(), ("*", "dog")), {"model": "canary", **ASK})
    (line,) = (json.loads(JsonForm().format(record)) for record in caplog.records)
    assert line["model"] == "dog"
    assert "canary" not in caplog.text


# --- loading when it is asked for


def test_a_request_waits_for_its_model_and_is_answered() -> None:
    async def test() -> None:
        engines = {"cat": ScriptedBackend(state=State.LOADING), "dog": ScriptedBackend()}
        served = create_app(models(engines, lazy=True), ServerConfig())
        waiting = [asyncio.create_task(acall(served, {**ASK, "stream": stream})) for stream in (False, True)]
        assert (await acall(served, {"model": "dog", **ASK})).status == 200
        told = await acall(served, method="GET", path="/health/models")
        assert (told.status, told.json()) == (200, {"status": "ok", "models": {"cat": "loading", "dog": "ready"}})
        assert not any(task.done() for task in waiting)
        engines["cat"].state = State.READY
        assert [answer.status for answer in await asyncio.gather(*waiting)] == [200, 200]

    run(test)


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_model_that_takes_long_to_load_is_a_503_with_retry_after(name: str) -> None:
    async def test() -> None:
        served = create_app(models({"cat": ScriptedBackend(state=State.LOADING)}, lazy=True, patience=0.01), ServerConfig(dialect=name))
        for stream in (False, True):
            answer = await acall(served, {**ASK, "stream": stream})
            assert (answer.status, answer.header("retry-after")) == (503, "1")
            assert "still loading" in answer.body.decode()

    run(test)


def test_a_catalogue_has_models_whose_context_only_loading_tells_once_they_are_loaded_as_one_asked_for_by_name_is() -> None:
    async def test() -> None:
        engines = two()
        served = create_app(models(engines, lazy=True), ServerConfig(dialect="cerebras"))

        async def listed(name: str = "") -> Answer:
            return await acall(served, method="GET", path=f"/v1/models{name}", query="format=openrouter")

        assert (await listed()).json() == {"data": []}
        assert (await listed("/dog")).json()["context_length"] == 32
        assert [(one["id"], one["context_length"]) for one in (await listed()).json()["data"]] == [("dog", 32)]
        engines["cat"].state = State.LOADING
        waiting = asyncio.create_task(listed("/cat"))
        while (loading := await listed()).status == 200:
            await asyncio.sleep(0)
        assert (loading.status, loading.header("retry-after"), waiting.done()) == (503, "1", False)
        engines["cat"].state = State.READY
        assert (await waiting).json()["context_length"] == 64
        assert [one["id"] for one in (await listed()).json()["data"]] == ["cat", "dog"]

    run(test)


@pytest.mark.parametrize("state", [None, State.LOADING, State.DEAD])
def test_a_catalogue_has_models_whose_context_is_known_whether_they_are_loaded_or_not(state: State | None) -> None:
    made = Model("cat", lambda: ScriptedBackend(state=state or State.READY), lazy=state is None, context=64)
    registry = Registry([made], name_models([("cat",)]))
    served = create_app(registry, ServerConfig(dialect="cerebras"))
    entry = call(served, method="GET", path="/v1/models/cat", query="format=openrouter").json()
    assert call(served, method="GET", path="/v1/models", query="format=openrouter").json() == {"data": [entry]}
    assert entry["context_length"] == 64
    assert registry.entries["cat"].status == (state.value if state else "unloaded")


@pytest.mark.parametrize("speculative", [True, False])
def test_slots_say_whether_tokens_may_be_drafted(speculative: bool) -> None:
    made = Model("cat", ScriptedBackend, speculative=speculative)
    slots = call(create_app(Registry([made], name_models([("cat",)])), ServerConfig()), method="GET", path="/slots").json()
    assert {slot["speculative"] for slot in slots} == {speculative}


def test_a_model_that_cannot_be_loaded_is_a_500_whose_reason_with_its_paths_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    broken = ScriptedBackend(state=State.DEAD, failure=ModelError("/srv/secret/cat.gguf: truncated."))
    with caplog.at_level("INFO", "quintet"):
        answer = call(create_app(models({"cat": broken}, lazy=True), ServerConfig()), ASK)
    told = "The model cat could not be loaded; the server's log has the reason."
    assert (answer.status, answer.json()["error"]["message"]) == (500, told)
    assert "cat: /srv/secret/cat.gguf: truncated." in caplog.messages


def test_a_client_that_leaves_while_its_model_loads_is_noticed() -> None:
    async def test() -> None:
        registry = models({"cat": ScriptedBackend(state=State.LOADING)}, lazy=True)
        answer = await acall(create_app(registry, ServerConfig()), ASK, leave_after=0.01)
        assert (answer.status, registry.entries["cat"].users) == (0, 0)
        assert registry.entries["cat"].status == "loading", "somebody else may want it"
        await registry.close()

    run(test)


def test_what_a_prompt_breaks_is_told_once_the_model_is_there() -> None:
    answer = call(create_app(models(two(), lazy=True), ServerConfig()), {"model": "dog", "prompt": "a" * 40, "max_tokens": 2})
    assert (answer.status, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_the_limit_per_key_counts_over_all_models() -> None:
    async def test() -> None:
        engines = {name: ScriptedBackend(pause=0.05, length=None) for name in ("cat", "dog")}
        served = app(engines, api_keys=("key",), max_per_key=1)
        headers = [*JSON, ("authorization", "Bearer key")]
        first = asyncio.create_task(acall(served, {"model": "cat", "prompt": "a", "max_tokens": 20}, headers=headers))
        while not engines["cat"].submitted:
            await asyncio.sleep(0.01)
        assert (await acall(served, {"model": "dog", **ASK}, headers=headers)).status == 429
        assert (await first).status == 200

    run(test)


# --- the admin's routes


async def order(served: Any, what: str, body: object, *headers: tuple[str, str]) -> Answer:
    return await acall(served, body, path=f"/v1/models/{what}", headers=[*JSON, *headers])


def test_the_admin_loads_and_unloads() -> None:
    async def test() -> None:
        engines = two()
        registry = models(engines, ("gpt", "dog"), lazy=True)
        served = create_app(registry, ServerConfig(admin_key="admin"))
        for name, what, status in (
            ("gpt", "load", "ready"),
            ("dog", "load", "ready"),
            ("dog", "unload", "unloaded"),
            ("dog", "unload", "unloaded"),
        ):
            answer = await order(served, what, {"model": name}, ADMIN)
            assert (answer.status, answer.json()) == (200, {"model": "dog", "status": status})
        assert engines["dog"].closed
        assert [entry.status for entry in registry.entries.values()] == ["unloaded", "unloaded"]

    run(test)


def bearers(*keys: str) -> Sequence[Sequence[tuple[str, str]]]:
    return [(), *((("authorization", f"Bearer {key}"),) for key in keys)]


@pytest.mark.parametrize("stream", [False, True])
def test_unloading_waits_for_the_engine_and_not_for_a_client_that_reads_slowly_which_gets_its_whole_answer(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintet.engines.registry.DRAIN_S", 3600.0)

    async def test() -> None:
        config = EngineConfig(kv_bytes=1 << 22, speculation=False)
        registry = Registry([Model("toy", lambda: Engine(toy_loader(), config), lazy=True)], name_models([("toy",)]))
        served = create_app(registry, ServerConfig(admin_key="admin"), source=SOURCE)
        stands, goes_on = asyncio.Event(), asyncio.Event()

        async def slowly(scope: Scope, receive: Receive, send: Send) -> None:
            async def late(message: Message) -> None:
                stands.set()
                await goes_on.wait()
                await send(message)

            await served(scope, receive, late)

        ask = {"prompt": "a", "max_tokens": 200, "stream": stream}
        reading = asyncio.create_task(acall(slowly, ask))
        await stands.wait()
        unloaded = await acall(served, {"model": "toy"}, path="/models/unload", headers=[*JSON, ADMIN])
        assert (unloaded.status, unloaded.json()["status"]) == (200, "unloaded")
        goes_on.set()
        assert (await reading).body == (await acall(served, ask)).body
        assert len((await reading).body) > 200
        await registry.close()

    run(test)


@pytest.mark.parametrize("what", ["load", "unload"])
def test_only_the_admin_key_opens_them_and_without_one_they_are_not_there(what: str) -> None:
    async def test() -> None:
        body = {"model": "cat"}
        for keys in ((), ("key",)):
            served = app(two(), api_keys=keys, admin_key="admin")
            ordered = [await order(served, what, body, *headers) for headers in bearers("wrong", "key", "admin")]
            assert [one.status for one in ordered] == [401, 401, 403 if keys else 401, 200], "an API key is known, and may not"
            ordinary = [await acall(served, {"model": "dog", **ASK}, headers=[*JSON, *headers]) for headers in bearers("key", "admin")]
            assert [one.status for one in ordinary] == ([401, 200, 200] if keys else [200, 200, 200])
        closed = await order(app(two()), what, body, ADMIN)
        assert (closed.status, "start it with --admin-key" in closed.body.decode()) == (404, True)

    run(test)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "missing_required_parameter"),
        ({"model": 1}, 400, "invalid_type"),
        ({"model": "cow"}, 404, "model_not_found"),
        (b"{", 400, "invalid_json"),
    ],
)
def test_a_bad_order_is_refused(body: object, status: int, code: str) -> None:
    async def test() -> None:
        answer = await order(app(two(), admin_key="admin"), "load", body, ADMIN)
        assert (answer.status, answer.json()["error"]["code"]) == (status, code)

    run(test)


def test_memory_that_does_not_suffice_is_a_503_and_unloads_nothing() -> None:
    async def test() -> None:
        room = 1500
        registry = models(two(), lazy=True, free=lambda: room)
        served = create_app(registry, ServerConfig(admin_key="admin"))
        assert (await order(served, "load", {"model": "cat"}, ADMIN)).status == 200
        room = -1
        answer = await order(served, "load", {"model": "dog"}, ADMIN)
        assert (answer.status, answer.header("retry-after")) == (503, "10")
        assert "The model dog needs" in answer.body.decode()
        assert [entry.status for entry in registry.entries.values()] == ["ready", "unloaded"]

    run(test)
