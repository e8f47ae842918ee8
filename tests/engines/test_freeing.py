"""Models freed when nobody asks for them, or an administrator wants it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engines.shops import PATIENCE_S, Fake, Shop, asked, registry, run, until

from quintet.backends.base import State
from quintet.engines.entry import POLL_S, Phase
from quintet.engines.registry import RETRY_S
from quintet.errors import BadRequest, Overloaded


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Once it is set engines are closed, and not before."""
    event, close = asyncio.Event(), Fake.close

    async def slowly(fake: Fake) -> None:
        await event.wait()
        await close(fake)

    monkeypatch.setattr(Fake, "close", slowly)
    return event


@pytest.mark.fault("D13")
def test_an_idle_model_is_freed_and_loaded_again_and_a_pinned_one_stays() -> None:
    async def test() -> None:
        a, b = Shop(), Shop()
        models = registry({"a": a, "b": b}, lazy=False, pinned=("b",), idle=0.3)
        while models.entries["a"].phase is not Phase.UNLOADED:
            await asyncio.sleep(0)  # asked for in the very step in which it is free
        assert a.made[0].state is State.CLOSED
        assert models.entries["b"].status == "ready"
        assert await asked(models, "a") is a.made[1]
        await models.close()

    run(test)


@pytest.mark.fault("D13")
def test_who_comes_while_an_idle_model_is_being_freed_has_it_loaded_again(freed: asyncio.Event) -> None:
    """It was told to come again: a refusal of a server that has nothing to do, since the model was not asked for for a while."""

    async def test() -> None:
        shop = Shop()
        models = registry({"a": shop}, idle=0.05)
        entry = models.entries["a"]
        await asked(models, "a")
        await until(lambda: entry.phase is Phase.UNLOADING)
        waiting = asyncio.create_task(asked(models, "a"))
        await until(lambda: entry.users == 1)
        assert not waiting.done()
        freed.set()
        assert await waiting is shop.made[1]
        await models.close()

    run(test)


def test_waiting_for_a_model_that_is_freed_and_then_loaded_is_one_patience(freed: asyncio.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was one for each: half a minute, where the documentation has fifteen seconds."""

    async def test() -> None:
        shop, wait = Shop(), asyncio.wait
        waits: list[float] = []

        async def noted(futures: Any, *, timeout: float) -> Any:
            waits.append(timeout)
            return await wait(futures, timeout=timeout)

        models = registry({"a": shop}, idle=0.05, patience=PATIENCE_S)
        entry = models.entries["a"]
        await asked(models, "a")
        await until(lambda: entry.phase is Phase.UNLOADING)
        monkeypatch.setattr(asyncio, "wait", noted)
        waiting = asyncio.create_task(asked(models, "a"))
        await until(lambda: bool(waits))
        await asyncio.sleep(0.05)
        freed.set()
        assert await waiting is shop.made[1]
        assert len(waits) == 2 and waits[1] <= waits[0] - 0.05
        await models.close()

    run(test)


def test_a_model_that_takes_longer_to_be_freed_than_a_request_waits_is_told(freed: asyncio.Event) -> None:
    async def test() -> None:
        shop = Shop()
        models = registry({"a": shop}, idle=0.05, patience=0.01)
        await asked(models, "a")
        await until(lambda: models.entries["a"].phase is Phase.UNLOADING)
        with pytest.raises(Overloaded, match="The model a is being unloaded; try again later"):
            await asked(models, "a")
        freed.set()
        await models.close()

    run(test)


def test_it_is_not_looked_for_idle_models_before_one_can_be_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.engines.registry.POLL_S", 0.0)
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return 0.0

    async def test() -> None:
        models = registry({"a": Shop()}, lazy=False, idle=1000, clock=clock)
        await asyncio.sleep(0)
        before = looks
        for _ in range(10):
            await asyncio.sleep(0)
        assert looks == before
        await models.close()

    run(test)


def test_a_model_that_works_is_not_idle() -> None:
    async def test() -> None:
        shop = Shop()
        models = registry({"a": shop, "b": Shop()}, idle=0.02)
        entry = models.find("a").entry
        with entry.held():
            engine = await models.ready(entry)
            await asked(models, "b")
            await until(lambda: models.entries["b"].phase is Phase.UNLOADED)
            assert entry.backend is engine
        await until(lambda: entry.phase is Phase.UNLOADED)
        await models.close()

    run(test)


@pytest.mark.fault("D13")
def test_unloading_lets_what_runs_end_and_refuses_what_comes() -> None:
    async def test() -> None:
        shop = Shop()
        models = registry({"a": shop})
        engine = await asked(models, "a")
        engine.live = 1
        entry = models.entries["a"]
        unloading = asyncio.create_task(models.unload(entry))
        await until(lambda: entry.status == "unloading")
        assert engine.drained
        for refused in (asked(models, "a"), models.unload(entry)):
            with pytest.raises(Overloaded, match="unloaded; try again later"):
                await refused
        engine.live = 0
        await unloading
        assert entry.status == "unloaded"
        await models.unload(entry)
        await models.close()

    run(test)


@pytest.mark.fault("D13")
def test_unloading_waits_for_a_request_that_is_between_two_pieces_of_its_work() -> None:
    """As a beam search is between two steps, and a judged answer between two chunks."""

    async def test() -> None:
        models = registry({"a": Shop()})
        await asked(models, "a")
        entry = models.entries["a"]
        with entry.held():
            unloading = asyncio.create_task(models.unload(entry))
            await until(lambda: entry.status == "unloading")
            await asyncio.sleep(3 * POLL_S)
            assert entry.status == "unloading" and entry.backend is not None
        await unloading
        assert entry.status == "unloaded"
        await models.close()

    run(test)


def test_unloading_does_not_wait_for_who_only_reads_what_the_engine_has_made_for_it() -> None:
    async def test() -> None:
        shop = Shop()
        models = registry({"a": shop})
        engine = await asked(models, "a")
        engine.live = 1
        entry = models.entries["a"]
        with entry.held(), entry.released():
            unloading = asyncio.create_task(models.unload(entry))
            await asyncio.sleep(3 * POLL_S)
            assert entry.status == "unloading"
            engine.live = 0
            await unloading
            assert (entry.status, entry.users) == ("unloaded", 1)
            assert await asked(models, "a") is shop.made[1]
            assert not entry.idle
        await models.close()

    run(test)


def test_unloading_ends_what_nobody_waits_for_and_that_does_not_load_the_model_again() -> None:
    async def test() -> None:
        shop = Shop()
        models = registry({"a": shop, "b": Shop()})
        entry, other = models.entries["a"], models.entries["b"]

        async def line() -> None:
            with entry.held(), other.held():
                async with other.yielding(), entry.yielding():
                    await models.ready(entry, background=True)
                    await asyncio.Event().wait()

        working = asyncio.create_task(line())
        await until(lambda: entry.status == "ready")
        async with asyncio.timeout(PATIENCE_S / 3):
            await asyncio.gather(models.unload(entry), models.unload(other))
            with pytest.raises(Overloaded, match="The model . is being unloaded"):
                await working
        with pytest.raises(Overloaded, match="unloaded by an administrator") as caught:
            await models.ready(entry, background=True)
        assert (caught.value.retry_after, len(shop.made), entry.users) == (RETRY_S, 1, 0)
        again = await asked(models, "a")
        assert (await models.ready(entry, background=True), len(shop.made)) == (again, 2)
        await models.close()

    run(test)


def test_what_nobody_waits_for_loads_a_model_that_was_freed_because_it_was_idle() -> None:
    async def test() -> None:
        shop = Shop()
        models = registry({"a": shop}, idle=0.1)
        entry = models.entries["a"]
        for _ in range(2):
            await models.ready(entry, background=True)
            await until(lambda: entry.phase is Phase.UNLOADED)
        assert len(shop.made) == 2
        await models.close()

    run(test)


def test_a_model_that_still_loads_at_the_start_is_not_unloaded() -> None:
    async def test() -> None:
        shop = Shop(State.LOADING)
        models = registry({"a": shop}, lazy=False)
        entry = models.entries["a"]
        with pytest.raises(Overloaded, match="is being loaded or unloaded; try again later"):
            await models.unload(entry)
        assert entry.status == "loading"
        shop.made[0].state = State.READY
        await models.unload(entry)
        assert entry.status == "unloaded"
        await models.close()

    run(test)


def test_a_pinned_model_is_not_unloaded() -> None:
    async def test() -> None:
        models = registry({"a": Shop()}, pinned=("a",))
        with pytest.raises(BadRequest, match="is pinned"):
            await models.unload(models.entries["a"])
        await models.close()

    run(test)
