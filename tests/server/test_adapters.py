"""LoRA adapters over HTTP: chosen by the model's name, listed, loaded and unloaded while the server serves; the engine is played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.server.asgi import JSON, SOURCE, Answer, acall
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.engines.adapters import LoraConfig
from quintet.engines.entry import Model
from quintet.engines.names import name_models
from quintet.engines.registry import Registry
from quintet.errors import ModelError
from quintet.events import Finish, TokenEvent
from quintet.inputs.sequence import Adapter, Prepared
from quintet.server.app import create_app

ASK = {"prompt": "a", "max_tokens": 2}
ADMIN = ("authorization", "Bearer admin")


class Adapting(ScriptedBackend):
    """Knows which adapter each request came with; has those whose path ends with "broken" fail, and the first stop if it is "/halted"."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Adapter | None] = []

    async def submit(self, prepared: Prepared) -> AsyncIterator[Sequence[TokenEvent]]:
        self.seen.append(prepared.adapter)
        if prepared.adapter is not None and prepared.adapter.path.endswith("broken"):
            yield [TokenEvent(0, -1, finish=Finish.ERROR, error="No.")]
            return
        if prepared.adapter is not None and prepared.adapter.path == "/halted" and len(self.seen) == 1:
            yield [TokenEvent(0, -1, finish=Finish.ABORT)]
            return
        async for batch in super().submit(prepared):
            yield batch


def check(path: str) -> str:
    if path.endswith("missing"):
        raise ModelError("there is nothing.")
    return path.rpartition("/")[2]


class World:
    """A server of a model with room for two adapters, of which one is there, and of one without."""

    def __init__(self) -> None:
        self.engine = Adapting()
        loras = LoraConfig(2, check, (("first", "/first"),))
        made = [Model("plain", ScriptedBackend), Model("base", lambda: self.engine, loras=loras)]
        names = name_models([("plain",), ("base",)], [("gpt-*", "base")]).adding("first", "base")
        self.registry = Registry(made, names)
        self.app = create_app(self.registry, ServerConfig(admin_key="admin"), source=SOURCE)

    async def ask(self, model: str) -> Answer:
        return await acall(self.app, {"model": model, **ASK})

    async def order(self, what: str, **body: object) -> Answer:
        return await acall(self.app, body, path=f"/v1/{what}_lora_adapter", headers=[*JSON, ADMIN])

    async def listed(self) -> list[str]:
        return [one["id"] for one in (await acall(self.app, method="GET", path="/v1/models")).json()["data"]]


def run(test: Callable[[World], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(60):
            await test(World())

    asyncio.run(within())


def test_the_name_of_a_request_chooses_its_adapter_and_is_answered() -> None:
    async def test(world: World) -> None:
        first, base, plain = [(await world.ask(name)).json() for name in ("first", "base", "plain")]
        assert [one["model"] for one in (first, base, plain)] == ["first", "base", "plain"]
        assert world.engine.seen == [Adapter(1, "/first", "first"), None]
        assert (first["system_fingerprint"], base["system_fingerprint"]) == ("fp_scripted-first", "fp_scripted")
        assert await world.listed() == ["plain", "base", "first"]

    run(test)


def test_adapters_are_loaded_and_unloaded_and_never_get_anothers_number() -> None:
    async def test(world: World) -> None:
        loaded = await world.order("load", lora_name="second", lora_path="/second")
        assert (loaded.status, loaded.body) == (200, b"Success: LoRA adapter 'second' added successfully.")
        assert world.engine.seen == [Adapter(2, "/second", "second")], "it was tried, on the first model that takes any"
        assert (await world.ask("second")).status == 200
        assert await world.listed() == ["plain", "base", "first", "second"]
        gone = await world.order("unload", lora_name="second")
        assert (gone.status, gone.body) == (200, b"Success: LoRA adapter 'second' removed successfully.")
        assert (await world.ask("second")).status == 404
        assert (await world.order("load", lora_name="second", lora_path="/second", base_model_name="gpt-4")).status == 200
        assert world.engine.seen[-1] == Adapter(3, "/second", "second")

    run(test)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"lora_name": "x"}, "'lora_path'"),
        ({"lora_path": "/x"}, "'lora_name'"),
        ({"lora_name": "first", "lora_path": "/x"}, "'lora_name' is taken, got 'first'."),
        ({"lora_name": "base", "lora_path": "/x"}, "'lora_name' is taken, got 'base'."),
        ({"lora_name": "x*", "lora_path": "/x"}, "'lora_name' cannot be: a model's name must not hold *"),
        ({"lora_name": "x", "lora_path": "/missing"}, "'lora_path' cannot be loaded: there is nothing, got '/missing'"),
        ({"lora_name": "x", "lora_path": "/broken"}, "'lora_path' cannot be loaded: No (the log has more), got '/broken'"),
        ({"lora_name": "x", "lora_path": "/x", "base_model_name": "plain"}, "'base_model_name' must be a model that takes LoRA adapters"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_name_and_nothing_is_left_of_it(body: dict[str, object], told: str) -> None:
    async def test(world: World) -> None:
        refused = await world.order("load", **body)
        assert refused.status == 400
        assert told in refused.json()["error"]["message"]
        assert await world.listed() == ["plain", "base", "first"]
        assert (await world.order("load", lora_name="other", lora_path="/other")).status == 200, "its place is free"

    run(test)


def test_an_adapter_whose_trial_is_called_off_is_not_there_and_may_be_tried_again() -> None:
    async def test(world: World) -> None:
        refused = await world.order("load", lora_name="x", lora_path="/halted")
        assert refused.status == 503 and refused.header("retry-after")
        assert "was not loaded" in refused.json()["error"]["message"]
        assert await world.listed() == ["plain", "base", "first"]
        assert (await world.order("load", lora_name="x", lora_path="/halted")).status == 200

    run(test)


def test_an_unknown_model_of_an_adapter_is_named_by_its_field() -> None:
    async def test(world: World) -> None:
        refused = await world.order("load", lora_name="x", lora_path="/x", base_model_name="nothing")
        assert (refused.status, refused.json()["error"]["param"]) == (404, "base_model_name")

    run(test)


def test_no_more_are_loaded_than_there_is_room_for_also_while_one_that_was_unloaded_is_in_use() -> None:
    async def test(world: World) -> None:
        assert (await world.order("load", lora_name="second", lora_path="/second")).status == 200
        full = await world.order("load", lora_name="third", lora_path="/third")
        assert (full.status, "as many adapters as --max-loras says, 2" in full.body.decode()) == (400, True)
        with world.registry.find("first").held():
            assert (await world.order("unload", lora_name="first")).status == 200
            assert (await world.order("load", lora_name="third", lora_path="/third")).status == 400
        assert (await world.order("load", lora_name="third", lora_path="/third")).status == 200

    run(test)


def test_two_that_load_the_same_name_at_once_do_not_both() -> None:
    async def test(world: World) -> None:
        assert (await world.order("unload", lora_name="first")).status == 200  # there is room for both
        world.engine.pause = 0.05
        orders = [world.order("load", lora_name="x", lora_path="/x"), world.order("load", lora_name="x", lora_path="/y")]
        loaded, refused = sorted(await asyncio.gather(*orders), key=lambda one: one.status)
        assert (loaded.status, refused.status) == (200, 400)
        assert "'lora_name' is being loaded, got 'x'." in refused.json()["error"]["message"]

    run(test)


def test_only_the_admin_may_and_what_is_not_there_is_a_404() -> None:
    async def test(world: World) -> None:
        for what in ("load", "unload"):
            body: dict[str, Any] = {"lora_name": "first", "lora_path": "/first"}
            assert (await acall(world.app, body, path=f"/v1/{what}_lora_adapter")).status == 401
        gone = await world.order("unload", lora_name="base")
        assert (gone.status, gone.json()["error"]["param"]) == (404, "lora_name")
        assert await world.listed() == ["plain", "base", "first"]

    run(test)
