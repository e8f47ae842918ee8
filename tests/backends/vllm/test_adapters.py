"""LoRA adapters in the child's loop: each is there before a sequence that needs it, and its loading harms nobody else."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.backends.vllm.playing import World, one, played

from quintet.backends.native.wire.messages import Abort, EventRow, Submit
from quintet.events import Finish
from quintet.inputs.sequence import Adapter


def test_an_adapter_is_there_before_a_sequence_that_needs_it_and_goes_when_another_needs_its_place() -> None:
    async def scenario(world: World) -> None:
        first, second, third = (Adapter(number, f"/adapters/{number}", "digest") for number in (1, 2, 3))
        await world.submit(1, one(), one(), adapter=first)
        await world.submit(2, one())
        assert world.core.adapters == [1], "once for both"
        assert [world.core.asked[name].adapter for name in ("1", "2", "3")] == [first, first, None]
        await world.say("1", 70, 71, 72)
        await world.say("2", 70, 71, 72)
        await world.say("3", 70, 71, 72)
        await world.submit(3, one(max_tokens=9), adapter=second)
        await world.submit(4, one(), adapter=third)
        assert world.core.adapters == [1, 2, -1, 3], "two have places, and nobody uses the first"

    played(scenario)


async def heard(world: World) -> bool:
    """The front hears something when half a second has gone by."""
    before = len(world.told)
    world.worker._look()
    await world.settle()
    return len(world.told) > before


def test_while_an_adapter_is_loaded_the_front_hears_that_something_goes_on_but_not_for_ever() -> None:
    """It would have the engine killed, which finishes no step meanwhile."""

    async def scenario(world: World) -> None:
        world.core.slow = asyncio.Event()
        await world.submit(1, one(), adapter=Adapter(1, "/adapters/1", "digest"))
        for _ in range(4):
            world.now += 60
            assert await heard(world)
        world.now += 100
        assert not await heard(world), "it hangs"
        world.core.slow.set()
        await world.settle()
        await world.submit(2, one(), adapter=Adapter(1, "/adapters/1", "digest"))
        assert not await heard(world), "it is for vLLM to finish steps"

    played(scenario)


def test_where_an_adapters_loading_hangs_requests_that_come_later_do_not_make_it_seem_to_go_on() -> None:
    async def scenario(world: World) -> None:
        world.core.slow = asyncio.Event()
        await world.submit(1, one(), adapter=Adapter(1, "/adapters/1", "digest"))
        world.now += 310
        await world.submit(2, one(), adapter=Adapter(2, "/adapters/2", "digest"))
        await world.submit(3, one())
        assert not await heard(world)
        world.worker.receive(Abort(1, None))
        world.worker.receive(Abort(2, None))
        await world.submit(4, one(), adapter=Adapter(1, "/adapters/1", "digest"))
        assert not await heard(world), "nor where all have left who waited for it"

    played(scenario)


def test_adapters_that_are_loaded_one_after_another_may_take_long_together() -> None:
    async def scenario(world: World) -> None:
        world.core.about = replace(world.core.about, most_adapters=4)
        world.worker.attach(world.core)
        world.core.slow = asyncio.Event()
        for number in (1, 2, 3):
            await world.submit(number, one(), adapter=Adapter(number, f"/adapters/{number}", "digest"))
        for number in (1, 2):
            world.now += 200
            assert await heard(world)
            world.core.slow.set()
            world.core.slow = asyncio.Event()
            await world.settle()
            assert world.core.adapters == [*range(1, number + 1)]
        world.now += 200
        assert await heard(world), "the third is loaded since 200 s, though it waits since 600"
        world.now += 150
        assert not await heard(world)

    played(scenario)


def test_an_adapter_that_cannot_be_loaded_fails_its_request_alone() -> None:
    async def scenario(world: World) -> None:
        world.core.bad = {7}
        await world.submit(1, one(), adapter=Adapter(7, "/adapters/7", "digest"))
        await world.submit(2, one())
        assert world.finishes(1) == {0: Finish.ERROR}
        assert [row.error for row in world.rows(1) if isinstance(row, EventRow)] == ["no such adapter"]
        await world.say(next(iter(world.core.outputs)), 70, 71, 72)
        assert world.finishes(2) == {0: Finish.LENGTH}

    played(scenario)


def test_who_leaves_while_an_adapter_is_loaded_leaves_it_loaded() -> None:
    async def scenario(world: World) -> None:
        adapter = Adapter(1, "/adapters/1", "digest")
        world.worker.receive(Submit.of(1, [one()], 5.0, adapter=adapter))
        await asyncio.sleep(0)
        world.worker.receive(Abort(1, None))
        await world.settle()
        await world.submit(2, one(), adapter=adapter)
        assert world.core.adapters == [1]
        await world.say(next(iter(world.core.outputs)), 70, 71, 72)
        assert world.finishes(2) == {0: Finish.LENGTH}

    played(scenario)
