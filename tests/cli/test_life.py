"""A server's start, while clients use already what there is of it, and its end."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from types import TracebackType

import pytest
from tests.engines.shops import Shop, asked, run, until

from quintet.backends.base import State
from quintet.cli.fleet import Fleet
from quintet.cli.life import Life
from quintet.engines.entry import Model
from quintet.engines.names import name_models
from quintet.engines.registry import Registry
from quintet.errors import EngineFailed, ModelError
from quintet.listen.server import Server
from quintet.listen.sockets import Inherited
from quintet.server.asgi import Receive, Scope, Send


@pytest.fixture(autouse=True)
def by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has to be cut off would end the tests' process too, and with success."""

    def cut_off(code: int) -> None:
        raise AssertionError(f"it had to be cut off with code {code}")

    monkeypatch.setattr(os, "_exit", cut_off)


async def nobody_asks(scope: Scope, receive: Receive, send: Send) -> None:
    """An application without requests."""


class Begun:
    """A server that has begun to load its models, inside an ``async with``.

    Args:
        lazy: which of them wait for a request.
    """

    def __init__(self, shops: dict[str, Shop], lazy: str = "") -> None:
        models = tuple(Model(name, shop.start, lazy=name in lazy) for name, shop in shops.items())
        fleet = Fleet(plans=(), models=models, names=name_models([(name,) for name in shops]), idle=0.0, image_hosts=())
        self._heard, ready = os.pipe()
        self._life = Life(
            fleet=fleet, server=self._server, given=Inherited(ready=ready), tls=None, banner="serves\n", drain=1.0, watchdog=0.0
        )

    async def __aenter__(self) -> Begun:
        self._running = asyncio.create_task(self._life.run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._made.end()
        os.close(self._heard)
        assert await self._running == 0

    async def serves(self) -> None:
        """Wait until it says so."""
        await until(lambda: self._running.done() or bool(select.select([self._heard], [], [], 0)[0]))
        if self._running.done():
            self._running.result()

    def _server(self, models: Registry) -> Server:
        self.models, self._made = models, Server(nobody_asks, (), 1)
        return self._made


def test_how_a_model_fares_that_came_up_while_others_load_ends_no_start() -> None:
    async def test() -> None:
        shops = {"a": Shop(State.LOADING), "b": Shop(), "c": Shop()}
        async with Begun(shops) as begun:
            shops["b"].made[0].live = 1
            unloading = asyncio.create_task(begun.models.unload(begun.models.entries["b"]))
            shops["c"].made[0].state = State.STALLED
            await until(lambda: begun.models.entries["b"].status == "unloading")
            shops["a"].made[0].state = State.READY
            await begun.serves()
            shops["b"].made[0].live = 0
            await unloading
            assert [entry.status for entry in begun.models.entries.values()] == ["ready", "unloaded", "stalled"]

    run(test)


def test_a_start_waits_for_no_model_that_a_client_asks_for_and_does_not_fail_with_it() -> None:
    async def test() -> None:
        shops = {"a": Shop(State.LOADING), "b": Shop(State.LOADING)}
        async with Begun(shops, lazy="b") as begun:
            waiting = asyncio.create_task(asked(begun.models, "b"))
            await until(lambda: bool(shops["b"].made))
            shops["a"].made[0].state = State.READY
            await begun.serves()
            assert [entry.status for entry in begun.models.entries.values()] == ["ready", "loading"]
            shops["b"].made[0].failure, shops["b"].made[0].state = ModelError("no such file."), State.DEAD
            with pytest.raises(EngineFailed, match="the server.s log has the reason"):
                await waiting

    run(test)


def test_a_model_that_cannot_be_loaded_ends_the_start_with_its_reason() -> None:
    async def test() -> None:
        shops = {"a": Shop(), "b": Shop(State.LOADING)}
        begun = Begun(shops)
        with pytest.raises(ModelError, match="no such file"):
            async with begun:
                shops["b"].made[0].failure, shops["b"].made[0].state = ModelError("no such file."), State.DEAD
                await begun.serves()

    run(test)


@pytest.mark.fault("D02")
def test_an_end_lets_answers_that_are_nearly_done_end_before_it_ends_the_engines() -> None:
    shop, seen = Shop(), list[State]()

    class Answering(Server):
        """In the middle of an answer, which ends a little later than it is told to."""

        async def serve(self) -> None:
            await told.wait()
            for _ in range(50):
                await asyncio.sleep(0)
            seen.append(shop.made[0].state)

        def end(self) -> None:
            told.set()

    async def test() -> None:
        fleet = Fleet(plans=(), models=(Model("a", shop.start),), names=name_models([("a",)]), idle=0.0, image_hosts=())
        life = Life(
            fleet=fleet, server=lambda _: Answering(nobody_asks, (), 1), given=Inherited(), tls=None, banner="", drain=1.0, watchdog=0.0
        )
        running = asyncio.create_task(life.run())
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0
        assert (seen, shop.made[0].state) == ([State.READY], State.CLOSED)

    told = asyncio.Event()
    run(test)
