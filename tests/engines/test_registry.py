"""Models loaded when they are asked for and freed when nobody does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engines.shops import PATIENCE_S, Fake, Shop, asked, registry, run, until

from quintet.backends.base import Health, State
from quintet.engines.entry import POLL_S, Entry, Model, Phase
from quintet.engines.names import name_models
from quintet.engines.registry import RETRY_S, Registry
from quintet.errors import BadRequest, EngineFailed, Loading, ModelError, ModelNotFound, Overloaded
from quintet.executor import FairExecutor
from quintet.guides.check import GuideCheck
from quintet.inputs.images.reader import ImageReader
from quintet.inputs.prepare import Preparer


def test_without_lazy_everything_is_loaded_at_the_start_and_nobody_waits_for_it() -> None:
    async def test() -> None:
        a, b = Shop(State.LOADING), Shop()
        models = registry({"a": a, "b": b}, lazy=False)
        assert (len(a.made), len(b.made)) == (1, 1)
        assert await asked(models, "a") is a.made[0]
        assert [entry.status for entry in models.entries.values()] == ["loading", "ready"]
        await models.close()

    run(test)


def test_a_lazy_model_is_loaded_once_for_all_that_ask_for_it_and_a_pinned_one_at_the_start() -> None:
    async def test() -> None:
        a, b = Shop(State.LOADING), Shop()
        models = registry({"a": a, "b": b}, pinned=("b",))
        assert (len(a.made), len(b.made)) == (0, 1)
        waiting = [asyncio.create_task(asked(models, "a")) for _ in range(3)]
        await until(lambda: bool(a.made))
        assert models.entries["a"].status == "loading"
        assert await asked(models, "b") is b.made[0], "others are served meanwhile"
        a.made[0].state = State.READY
        assert await asyncio.gather(*waiting) == a.made * 3
        assert models.entries["a"].phase is Phase.LOADED
        await models.close()

    run(test)


def test_a_request_waits_for_a_model_no_longer_than_its_patience_and_the_load_goes_on() -> None:
    async def test() -> None:
        shop = Shop(State.LOADING)
        models = registry({"a": shop}, patience=0.01)
        with pytest.raises(Loading, match=r"The model a is still loading \(50%\)") as caught:
            await asked(models, "a")
        assert caught.value.retry_after > 0
        shop.made[0].state = State.READY
        await until(lambda: models.entries["a"].phase is Phase.LOADED)
        assert await asked(models, "a") is shop.made[0]
        assert len(shop.made) == 1
        await models.close()

    run(test)


def test_one_that_leaves_while_it_waits_holds_nothing_and_ends_nobody_elses_load() -> None:
    async def test() -> None:
        shop = Shop(State.LOADING)
        models = registry({"a": shop})
        stays, leaves = (asyncio.create_task(asked(models, "a")) for _ in range(2))
        await until(lambda: models.entries["a"].users == 2)
        leaves.cancel()
        await until(lambda: models.entries["a"].users == 1)
        await until(lambda: bool(shop.made))
        shop.made[0].state = State.READY
        assert await stays is shop.made[0]
        await models.close()

    run(test)


@pytest.mark.parametrize("failure", [ModelError("/secret.gguf: no such file."), OSError("secret")])
def test_a_load_that_fails_is_told_and_tried_again_by_the_next_request(failure: Exception) -> None:
    async def test() -> None:
        shop = Shop(State.LOADING)
        models = registry({"a": shop})
        waiting = asyncio.create_task(asked(models, "a"))
        await until(lambda: bool(shop.made))
        shop.made[0].failure, shop.made[0].state = failure, State.DEAD
        with pytest.raises(EngineFailed, match=r"^The model a could not be loaded; the server's log has the reason\.$") as caught:
            await waiting
        assert caught.value.__cause__ is failure
        assert models.entries["a"].status == "unloaded"
        shop.state = State.READY
        assert await asked(models, "a") is shop.made[1]
        await models.close()

    run(test)


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
def test_who_comes_while_an_idle_model_is_being_freed_has_it_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told to come again: a refusal of a server that has nothing to do, since the model was not asked for for a while."""

    async def test() -> None:
        shop, freed, close = Shop(), asyncio.Event(), Fake.close

        async def slowly(fake: Fake) -> None:
            await freed.wait()
            await close(fake)

        monkeypatch.setattr(Fake, "close", slowly)
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
        with entry.held(), entry.given():
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


def test_a_drain_refuses_everything_and_loads_nothing_more() -> None:
    async def test() -> None:
        shops = {name: Shop(State.LOADING) for name in "abc"}
        models = registry(shops)
        waiting = asyncio.create_task(asked(models, "a"))
        await until(lambda: bool(shops["a"].made))
        models.drain()
        for refused in (waiting, asked(models, "a"), asked(models, "b")):
            with pytest.raises(Overloaded, match="shutting down"):
                await refused
        assert not shops["b"].made
        await models.close()
        await models.close()

    run(test)


def test_while_it_drains_or_unloads_a_refusal_tells_when_the_work_that_is_left_may_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        models = registry({"a": Shop(), "b": Shop()})
        await asked(models, "a")
        await asked(models, "b")
        monkeypatch.setattr(Fake, "health", lambda fake: Health(fake.state, 0.0, retry_after=17.0))
        models.entries["b"].drain()
        with pytest.raises(Overloaded, match="is being unloaded") as caught:
            await asked(models, "b")
        assert caught.value.retry_after == 17
        models.drain()
        with pytest.raises(Overloaded, match="shutting down") as caught:
            await asked(models, "a")
        assert caught.value.retry_after == 17
        await models.close()

    run(test)


def test_closing_ends_a_load_and_all_engines() -> None:
    async def test() -> None:
        shops = {"a": Shop(State.LOADING), "b": Shop()}
        models = registry(shops, idle=60)
        waiting = asyncio.create_task(asked(models, "a"))
        await asked(models, "b")
        await until(lambda: bool(shops["a"].made))
        await models.close()
        with pytest.raises(Overloaded, match="shutting down"):
            await waiting
        assert [shop.made[0].state for shop in shops.values()] == [State.CLOSED, State.CLOSED]
        assert len(asyncio.all_tasks()) == 1, "of this test alone"

    run(test)


def test_two_that_close_at_the_same_time_end_everything_once() -> None:
    async def test() -> None:
        shop = Shop()
        models = registry({"a": shop})
        (await asked(models, "a")).steps = 5
        await asyncio.gather(models.close(), models.close())
        entry = models.entries["a"]
        assert (entry.status, entry.health().counts.steps) == ("unloaded", 5)

    run(test)


def test_live_counts_every_model_and_a_name_finds_its_entry() -> None:
    async def test() -> None:
        models = registry({"a": Shop(), "b": Shop(), "c": Shop()})
        for at, name in enumerate("ab"):
            (await asked(models, name)).live = at + 1
        assert models.live == 3
        assert models.find("b") == models.find("b")
        assert (models.find("").entry.name, models.find("b").name) == ("a", "b")
        with pytest.raises(ModelNotFound, match="'d' is not served here; served: a, b, c"):
            models.find("d")
        await models.close()

    run(test)


def test_what_takes_long_is_run_by_one_for_all_models_and_the_server() -> None:
    async def test() -> None:
        given: list[FairExecutor] = []  # two would take the interpreter from the event loop twice as often

        def preparer(engine: Any, guides: GuideCheck, executor: FairExecutor, images: ImageReader) -> Preparer:
            given.append(executor)
            return Preparer(engine, guides, executor, images)

        models = Registry([Model(name, Shop().start, preparer=preparer) for name in "ab"], name_models([("a",), ("b",)]))
        assert [id(one) for one in given] == [id(models.executor)] * 2
        await models.close()

    run(test)


def test_what_engines_have_counted_outlives_them() -> None:
    async def test() -> None:
        shop = Shop()
        entry = Entry(Model("a", shop.start), GuideCheck(), FairExecutor(), ImageReader(FairExecutor()), lambda: 0.0)
        for at in (1, 2):
            await entry.load()
            shop.made[-1].steps = 5
            assert (entry.health().counts.steps, entry.health().batches[0], entry.health().state) == (5 * at, 5 * at, State.READY)
            await entry.close()
            assert (entry.health().counts.steps, entry.health().batches[0], entry.health().state) == (5 * at, 5 * at, State.CLOSED)

    run(test)
