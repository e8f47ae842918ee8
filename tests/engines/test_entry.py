"""A model and who needs it: when it is answered, when it may be freed, when it is not there yet."""

from __future__ import annotations

import asyncio

import pytest
from tests.engines.shops import Fake, Shop, asked, registry, run, until

from quintet.backends.base import State
from quintet.engines.entry import Phase, settled


def test_a_request_is_unanswered_until_its_answer_ends_once_or_it_is_over() -> None:
    async def test() -> None:
        entry = registry({"a": Shop()}).entries["a"]
        with entry.held(), entry.held():
            with entry.answering() as end:
                assert entry.unanswered == 2
                end()
                end()
                assert entry.unanswered == 1
            assert entry.unanswered == 2
            with entry.answering() as end:
                pass
            end()
            assert entry.unanswered == 2, "a refusal is answered when the request is over"

    run(test)


def test_a_model_that_is_being_loaded_is_not_freed_though_its_engine_is_there() -> None:
    async def test() -> None:
        shop = Shop(State.LOADING)
        models = registry({"a": shop})
        entry = models.entries["a"]
        loading = asyncio.create_task(entry.load())
        await until(lambda: bool(shop.made))
        assert (entry.status, entry.loaded, entry.spare) == ("loading", False, False)
        shop.made[0].state = State.READY  # which is seen a moment later
        assert (entry.status, entry.loaded, entry.spare) == ("loading", False, False)
        await loading
        assert (entry.status, entry.loaded, entry.spare) == ("ready", True, True)
        await models.close()

    run(test)


def test_what_yields_counts_as_long_as_it_is_there_and_its_own_timeouts_are_its_own() -> None:
    async def test() -> None:
        models = registry({"a": Shop()})
        entry = models.entries["a"]
        await asked(models, "a")
        with entry.held():
            async with entry.yielding():
                inside = entry.spare, entry.idle
            assert (inside, entry.spare) == ((True, False), False)
            with pytest.raises(TimeoutError, match="its own"):
                async with entry.yielding():
                    raise TimeoutError("its own")
        await models.close()

    run(test)


def test_who_asks_the_engine_for_more_again_is_waited_for() -> None:
    async def test() -> None:
        models = registry({"a": Shop()})
        entry = models.entries["a"]
        await asked(models, "a")
        with entry.held():
            with entry.released():
                pass
            entry.drain()
            await entry.unload(0.0)
            assert entry.phase is Phase.UNLOADED, "but no longer than is said"
            entry.start()
            unloading = asyncio.create_task(entry.unload(60.0))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not unloading.done() and entry.backend is not None
            await entry.close()
            await unloading
        await models.close()

    run(test)


def test_how_much_is_loaded_is_shown_until_it_is_all() -> None:
    async def test() -> None:
        engine, shown = Fake(), list[float]()

        def show(share: float) -> None:
            shown.append(share)
            engine.state = State.READY

        health = await settled(engine, show)  # type: ignore[arg-type]
        assert (health.state, shown) == (State.READY, [0.5])

    run(test)
