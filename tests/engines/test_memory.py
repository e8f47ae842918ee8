"""Models for which there is no memory, and those that make room for others."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.shops import Shop, asked, registry, run, until

from quintet.backends.base import State
from quintet.engines.entry import Model, Phase
from quintet.engines.names import name_models
from quintet.engines.registry import Registry, first_enough
from quintet.errors import Overloaded


def test_memory_that_does_not_suffice_is_told_before_anything_is_unloaded() -> None:
    async def test() -> None:
        shops = {name: Shop() for name in "abc"}
        room = 1000_000
        models = registry(shops, weights=500_000, free=lambda: room)
        for name in "ab":
            await asked(models, name)
        room = 40_000
        in_use = models.entries["b"].held()
        with in_use, pytest.raises(Overloaded, match="The model c needs 1 MB of memory, and 1 MB can be had") as caught:
            await asked(models, "c")
        assert caught.value.retry_after > 1
        assert [entry.status for entry in models.entries.values()] == ["ready", "ready", "unloaded"]
        await models.close()

    run(test)


def test_what_was_idle_longest_makes_room() -> None:
    async def test() -> None:
        shops = {name: Shop() for name in "abc"}
        room = 10_000_000
        models = registry(shops, weights=500_000, free=lambda: room)
        for name in "bca":
            await asked(models, name)
        await models.unload(models.entries["a"])
        room = 60_000
        await asked(models, "a")
        assert [entry.status for entry in models.entries.values()] == ["ready", "unloaded", "ready"]
        await models.close()

    run(test)


def test_a_model_that_only_works_for_nobody_makes_room_for_who_waits_after_what_is_idle_and_for_no_other_such_work() -> None:
    async def test() -> None:
        shops = {name: Shop() for name in "abc"}
        room = 10_000_000
        models = registry(shops, weights=500_000, free=lambda: room)
        entry = models.entries["a"]

        async def line() -> None:
            with entry.held():
                async with entry.yielding():
                    await models.ready(entry, background=True)
                    await asyncio.Event().wait()

        working = asyncio.create_task(line())
        await until(lambda: entry.status == "ready")
        await asked(models, "b")
        room = 60_000
        await asked(models, "c")
        assert [entry.status for entry in models.entries.values()] == ["ready", "unloaded", "ready"]
        with models.entries["c"].held():
            with pytest.raises(Overloaded, match="The model b needs 1 MB of memory"):
                await models.ready(models.entries["b"], background=True)
            with entry.held(), pytest.raises(Overloaded, match="The model b needs 1 MB of memory"):
                await asked(models, "b")
            assert not working.done()
            await asked(models, "b")
            with pytest.raises(Overloaded, match="The model a is being unloaded"):
                await working
        assert [entry.status for entry in models.entries.values()] == ["unloaded", "ready", "ready"]
        await models.close()

    run(test)


def test_what_is_idle_makes_room_for_a_model_for_which_nobody_waits_too() -> None:
    async def test() -> None:
        room = 10_000_000
        models = registry({"a": Shop(), "b": Shop()}, weights=500_000, free=lambda: room)
        await asked(models, "a")
        room = 60_000
        await models.ready(models.entries["b"], background=True)
        assert [entry.status for entry in models.entries.values()] == ["unloaded", "ready"]
        await models.close()

    run(test)


@pytest.mark.fault("D13")
def test_who_asks_for_a_model_in_the_step_in_which_it_begins_to_make_room_does_not_hold_that_up() -> None:
    """The unloading waited for the request, as for work on the model, and the request for the unloading; then both models were refused."""

    async def test() -> None:
        a, b, rooms = Shop(), Shop(), iter((10_000_000, 60_000, 10_000_000))
        models = registry({"a": a, "b": b}, weights=500_000, free=lambda: next(rooms))
        await asked(models, "a")
        other = asyncio.create_task(asked(models, "b"))
        await asyncio.sleep(0)  # it has asked for the load, whose first step is the next
        same = asyncio.create_task(asked(models, "a"))
        assert await other is b.made[0]
        assert await same is a.made[1]
        await models.close()

    run(test)


def test_weights_that_are_mapped_need_no_room_but_what_is_idle_makes_some() -> None:
    async def test() -> None:
        room = 1_200_000  # what is mapped is told as free, whoever uses it
        models = registry({name: Shop() for name in "abc"}, weights=500_000, mapped=True, free=lambda: room)
        for name in "abc":  # with c there are 1.5 MB of them
            await asked(models, name)
        assert [entry.status for entry in models.entries.values()] == ["unloaded", "ready", "ready"]
        room = 100_000
        await asked(models, "a")
        assert [entry.status for entry in models.entries.values()] == ["ready", "unloaded", "unloaded"]
        room = 40_000
        with pytest.raises(Overloaded, match="The model b needs 1 MB of memory"):  # of which 50 kB are its keys' and values'
            await asked(models, "b")
        await models.close()

    run(test)


def test_a_model_that_was_loaded_at_the_start_to_stay_makes_no_room() -> None:
    async def test() -> None:
        room = 10_000_000
        models = registry({"a": Shop(), "b": Shop()}, lazy=False, weights=500_000, free=lambda: room)
        await models.unload(models.entries["b"])
        room = 60_000  # with that of a it would be enough
        with pytest.raises(Overloaded, match="0 MB can be had"):
            await asked(models, "b")
        await models.close()

    run(test)


def test_memory_that_models_will_take_which_load_at_the_start_is_nobody_elses() -> None:
    async def test() -> None:
        shops = {"a": Shop(State.LOADING), "b": Shop()}
        models = registry(shops, pinned=("a",), weights=500_000, free=lambda: 1000_000)  # as if a had taken nothing yet
        with pytest.raises(Overloaded, match="The model b needs 1 MB of memory"):
            await asked(models, "b")
        shops["a"].made[0].state = State.READY
        assert await asked(models, "b") is shops["b"].made[0]
        await models.close()

    run(test)


def test_weights_that_are_mapped_and_still_load_are_counted_once() -> None:
    async def test() -> None:
        shops = {"a": Shop(State.LOADING), "b": Shop(), "c": Shop()}
        models = registry(shops, pinned=("a",), weights=500_000, mapped=True, free=lambda: 1_700_000)
        for name in "cb":
            await asked(models, name)
        assert [entry.status for entry in models.entries.values()] == ["loading", "ready", "ready"]
        await models.close()

    run(test)


@pytest.mark.parametrize(("others", "statuses"), [(30, ["unloaded", "ready", "unloaded"]), (5, ["unloaded", "ready", "ready"])])
def test_memory_that_is_made_for_one_model_is_not_given_to_another_that_is_asked_for_meanwhile(others: int, statuses: list[str]) -> None:
    async def test() -> None:
        sizes = {"a": 60, "b": 90, "c": others}
        shops = {"a": Shop(), "b": Shop(State.LOADING), "c": Shop()}

        def free() -> int:
            return 100 - sum(sizes[name] for name, shop in shops.items() for one in shop.made if one.state is State.READY)

        made = [Model(name, shops[name].start, size, lazy=True) for name, size in sizes.items()]
        models = Registry(made, name_models([(name,) for name in sizes]), free=free)
        await asked(models, "a")
        b, c = (asyncio.create_task(asked(models, name)) for name in "bc")  # b waits until a, which is in its way, is gone
        await asyncio.wait((c,))
        await until(lambda: bool(shops["b"].made))
        shops["b"].made[0].state = State.READY
        assert await b is shops["b"].made[0]
        assert isinstance(c.exception(), Overloaded) is (statuses[2] == "unloaded")
        assert [entry.status for entry in models.entries.values()] == statuses
        assert free() >= 0
        await models.close()

    run(test)


def test_a_drain_while_room_is_made_for_a_model_loads_it_no_more() -> None:
    async def test() -> None:
        shops = {"a": Shop(), "b": Shop()}
        room = 10_000_000
        models = registry(shops, weights=500_000, free=lambda: room)
        engine = await asked(models, "a")
        engine.live = 1
        room = 60_000
        waiting = asyncio.create_task(asked(models, "b"))
        await until(lambda: models.entries["a"].phase is Phase.UNLOADING)
        models.drain()
        engine.live = 0
        with pytest.raises(Overloaded, match="shutting down"):
            await waiting
        assert not shops["b"].made
        await models.close()

    run(test)


@given(st.lists(st.floats(0, 100), max_size=8), st.floats(-10, 300))
def test_the_first_that_suffice_are_taken_and_not_one_more(sizes: list[float], lacking: float) -> None:
    taken = first_enough(lacking, enumerate(sizes))
    if taken is None:
        assert sum(sizes) < lacking + 1e-6
        return
    assert taken == list(range(len(taken)))
    assert sum(sizes[: len(taken)]) >= lacking - 1e-6
    assert not taken or sum(sizes[: len(taken) - 1]) < lacking + 1e-6
