"""Images with an engine's own processor: one prompt's at a time, whatever becomes of who asked, of the answer and of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.backends.native.front import supervised

from quintet.backends.native.front import expanding
from quintet.backends.native.front.expanding import BUSY, ENDED, MALFORMED, REFUSED, Expanding
from quintet.backends.native.wire.messages import Died, Expand, Expanded
from quintet.errors import Loading, Overloaded
from quintet.inputs.images.expansion import Expansion, UnprocessableError
from quintet.inputs.images.value import PreparedImage

MADE = Expansion((9, 9), (0, 2), ((0, 2),))


def image(name: bytes) -> PreparedImage:
    return PreparedImage(name, (), (0, 0), (1, 1, 1), b"rgb")


class World:
    """One who asks, and what the engine hears."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[Expand] = []
        self.open = True
        self.asking = Expanding(self.sent.append, lambda: self.now)

    def require_open(self) -> None:
        if not self.open:
            raise Loading("closed")

    async def ask(self, *names: bytes, tenant: str = "") -> asyncio.Task[tuple[Expansion, ...]]:
        work = self.asking.ask([image(name) for name in names], b"salt", tenant, self.require_open)
        task = asyncio.create_task(work)
        await self.settle()
        return task

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def played(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario(World()))


@pytest.mark.fault("B21")
def test_one_prompt_is_with_the_engine_at_a_time_and_tenants_take_turns() -> None:
    async def scenario(world: World) -> None:
        tasks = [await world.ask(name, tenant=tenant) for name, tenant in ((b"a", "x"), (b"b", "x"), (b"c", "x"), (b"d", "y"))]
        order: list[bytes] = []
        for _ in tasks:
            assert len(world.sent) == len(order) + 1
            order.append(world.sent[-1].images[0].digest)
            world.asking.take(Expanded(world.sent[-1].number, (MADE,)))
            await world.settle()
        assert order == [b"a", b"b", b"d", b"c"]
        assert [await task for task in tasks] == [(MADE,)] * 4
        assert world.sent[0] == Expand(1, b"salt", (image(b"a"),))

    played(scenario)


@pytest.mark.fault("C11")
def test_who_leaves_keeps_the_turn_until_the_engine_has_answered() -> None:
    async def scenario(world: World) -> None:
        first, second, third = [await world.ask(name) for name in (b"a", b"b", b"c")]
        first.cancel()
        second.cancel()
        await world.settle()
        assert len(world.sent) == 1
        world.asking.take(Expanded(99, (MADE,)))
        await world.settle()
        assert len(world.sent) == 1, "an answer to nothing"
        world.asking.take(Expanded(1, (MADE,)))
        await world.settle()
        assert [one.images[0].digest for one in world.sent] == [b"a", b"c"], "who left while it waited is passed over"
        world.asking.take(Expanded(2, (MADE,)))
        assert await third == (MADE,)

    played(scenario)


@pytest.mark.parametrize(
    ("answer", "index", "rule"),
    [
        (Expanded(1, refused=(1, "too odd")), 1, "too odd"),
        (Expanded(1, refused=(-1, "too odd")), None, "too odd"),
        (Expanded(1, refused=(7, "too odd")), None, "too odd"),
        (Expanded(1, (MADE,)), None, MALFORMED),
    ],
)
def test_what_is_refused_is_told_and_the_next_has_its_turn(answer: Expanded, index: int | None, rule: str) -> None:
    async def scenario(world: World) -> None:
        task, after = await world.ask(b"a", b"b"), await world.ask(b"c")
        world.asking.take(answer)
        with pytest.raises(UnprocessableError, match=rule) as caught:
            await task
        assert caught.value.index == index
        await world.settle()
        assert len(world.sent) == 2
        world.asking.take(Expanded(2, (MADE,)))
        assert await after == (MADE,)

    played(scenario)


@pytest.mark.fault("C10")
def test_an_engine_that_ends_has_lost_them_and_twice_is_too_often() -> None:
    async def scenario(world: World) -> None:
        for _ in range(2):
            task, after = await world.ask(b"a", tenant="x"), await world.ask(b"b", tenant="y")
            world.open = False
            world.asking.down()
            for lost, told in ((task, ENDED), (after, "closed")):
                with pytest.raises(Loading, match=told):
                    await lost
            world.open = True
        assert [one.images[0].digest for one in world.sent] == [b"a", b"a"]
        with pytest.raises(UnprocessableError, match=REFUSED):
            await (await world.ask(b"a", tenant="x"))
        world.now = 601.0
        again = await world.ask(b"a", tenant="x")
        world.asking.take(Expanded(3, (MADE,)))
        assert await again == (MADE,)
        world.asking.down()

    played(scenario)


@pytest.mark.parametrize("closed", [False, True])
def test_whoever_waits_for_an_engine_that_dies_or_is_closed_is_told_at_once(closed: bool) -> None:
    async def scenario(_: World) -> None:
        world = supervised.ready()
        task = asyncio.create_task(world.made.expanding.ask([image(b"a")], b"salt", "", lambda: None))
        while not world.link.sent:
            await asyncio.sleep(0)
        if closed:
            await world.made.close()
        else:
            world.link.say(Died("it ended."))
        with pytest.raises(Loading, match=ENDED):
            await task

    played(scenario)


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expanding, "WAIT_S", 0.02)
    monkeypatch.setattr(expanding, "ANSWER_S", 0.01)

    async def scenario(world: World) -> None:
        for name in (b"a", b"b"):
            with pytest.raises(Overloaded, match=BUSY):
                await (await world.ask(name))
        assert len(world.sent) == 1, "a processor that does not answer is asked for nothing else"
        world.asking.take(Expanded(1, (MADE,)))
        late = await world.ask(b"c")
        world.asking.take(Expanded(2, (MADE,)))
        assert await late == (MADE,)

    played(scenario)
