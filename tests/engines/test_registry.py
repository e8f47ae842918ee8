"""Models loaded when they are asked for, by one for all, and ended together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engines.shops import Fake, Shop, asked, registry, run, until

from quintet.backends.base import Health, State
from quintet.engines.entry import Entry, Model, Phase
from quintet.engines.names import name_models
from quintet.engines.registry import Registry
from quintet.errors import EngineFailed, Loading, ModelError, ModelNotFound, Overloaded
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
def test_a_load_that_fails_is_told_and_tried_again_by_the_next_request(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        shop = Shop(State.LOADING)
        models = registry({"a": shop})
        waiting = asyncio.create_task(asked(models, "a"))
        await until(lambda: bool(shop.made))
        shop.made[0].failure, shop.made[0].state = failure, State.DEAD
        with pytest.raises(EngineFailed, match=r"^The model a could not be loaded; the server's log has the reason\.$") as caught:
            await waiting
        assert caught.value.__cause__ is failure
        assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [f"a: {failure}"]
        assert models.entries["a"].status == "unloaded"
        shop.state = State.READY
        assert await asked(models, "a") is shop.made[1]
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


@pytest.mark.parametrize(("left", "told"), [(17.0, 17.0), (0.0, 1.0)])
def test_while_it_drains_or_unloads_a_refusal_tells_when_the_work_that_is_left_may_be_done(
    left: float, told: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        models = registry({"a": Shop(), "b": Shop()})
        await asked(models, "a")
        await asked(models, "b")
        monkeypatch.setattr(Fake, "health", lambda fake: Health(fake.state, 0.0, retry_after=left))
        models.entries["b"].drain()
        with pytest.raises(Overloaded, match="is being unloaded") as caught:
            await asked(models, "b")
        assert caught.value.retry_after == told
        models.drain()
        with pytest.raises(Overloaded, match="shutting down") as caught:
            await asked(models, "a")
        assert caught.value.retry_after == told
        await models.close()

    run(test)


def test_closing_ends_a_load_all_engines_and_what_reads_images(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[ImageReader] = []
    monkeypatch.setattr(ImageReader, "close", lambda reader: readers.append(reader))

    async def test() -> None:
        shops = {"a": Shop(State.LOADING), "b": Shop()}
        models = registry(shops, idle=60)
        waiting = asyncio.create_task(asked(models, "a"))
        await asked(models, "b")
        await until(lambda: bool(shops["a"].made))
        await models.close()
        with pytest.raises(Overloaded, match="shutting down"):
            await waiting
        with pytest.raises(Overloaded, match="shutting down"):
            await asked(models, "b")
        assert [engine.state for shop in shops.values() for engine in shop.made] == [State.CLOSED, State.CLOSED]
        assert len(readers) == 1
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
