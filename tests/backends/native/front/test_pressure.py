"""What an engine does when memory runs short, grade by grade."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.backends.native.front.supervised import READY, World, ready
from tests.backends.native.front.test_engine import answer, loader, play, spec, until

from quintet.backends.base import State
from quintet.backends.native.core.types import U8, Batch, Meanwhile
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.pressure import AGAIN_S, KEEP, LOOK_S, TAKE, TAKE_AGAIN, Pressure
from quintet.backends.native.wire.messages import Shed
from quintet.backends.toy import ToyRunner
from quintet.events import Finish

GIB = 1 << 30


@given(st.integers(1, 1 << 50), st.integers(0, 1 << 50))
def test_what_is_kept_goes_before_anybody_is_refused(total: int, free: int) -> None:
    assert not TAKE.reached(free, total) or TAKE_AGAIN.reached(free, total)
    assert not TAKE_AGAIN.reached(free, total) or KEEP.reached(free, total)


@pytest.mark.fault("D11")
def test_of_a_small_machine_a_share_counts_and_of_a_large_one_bytes() -> None:
    for total, grades in ((4 * GIB, (0.08, 0.05)), (1024 * GIB, (1 / 1024, 0.5 / 1024))):
        for grade, share in zip((KEEP, TAKE), grades, strict=True):
            assert grade.reached(int(share * total) - 1, total)
            assert not grade.reached(int(share * total) + 2, total)


def test_one_who_refuses_takes_again_only_when_there_is_clearly_more() -> None:
    free = [4, 5, 6, 7, 6]
    pressure = Pressure(lambda: (free.pop(0), 100))
    shorts = []
    for look in range(5):
        for part in (0.0, 0.5, 1.0):  # more often than need be
            pressure.look(LOOK_S * look + part)
        shorts.append(pressure.short)
    assert shorts == [True, True, True, False, False]
    assert pressure.usage == pytest.approx(0.94)


def sheds(world: World) -> int:
    return sum(isinstance(message, Shed) for message in world.link.sent)


@pytest.mark.fault("D11")
def test_an_engine_is_told_to_give_back_now_and_then_and_refuses_only_when_that_was_not_enough(caplog: pytest.LogCaptureFixture) -> None:
    world = ready()
    world.wait(100.0)
    assert (sheds(world), world.made.short_of_memory()) == (0, False)
    world.memory = (7 * GIB // 100, GIB)
    world.wait(4 * AGAIN_S)
    assert 3 <= sheds(world) <= 5
    assert not world.made.short_of_memory()
    assert caplog.messages[-1] == "memory runs short (93 % is in use): the engine gives back what it keeps"
    world.memory = (4 * GIB // 100, GIB)
    world.run(1)
    world.wait(2 * LOOK_S)
    assert world.made.short_of_memory()
    assert world.told() == [1], "what was taken runs"
    world.memory = (GIB // 2, GIB)
    world.wait(2 * LOOK_S)
    assert not world.made.short_of_memory()
    health = world.made.health(draining=False)
    assert (health.incidents.shed >= 4, health.incidents.short, health.memory) == (True, 1, 0.5)


@pytest.mark.parametrize("busy", [False, True])
def test_memory_is_looked_at_as_often_however_long_a_step_may_take(*, busy: bool) -> None:
    world = World()
    world.link.say(structs.replace(READY, step_s=60.0))
    if busy:
        world.run(1)
    world.wait(2 * LOOK_S)
    world.memory = (0, GIB)
    world.wait(LOOK_S)
    assert world.made.short_of_memory()


class Greedy(ToyRunner):
    """A runner whose memory does not suffice for a Z."""

    def forward(self, batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
        if (batch.tokens == ord("Z")).any():
            raise MemoryError
        return super().forward(batch, meanwhile)


@pytest.mark.fault("D05")
def test_a_request_for_which_the_memory_does_not_suffice_ends_with_an_error_and_the_engine_goes_on() -> None:
    async def scenario(engine: Engine) -> None:
        await until(engine, State.READY)
        before = await answer(engine, spec("good"))
        assert (await answer(engine, spec("baZd")))[-1].finish is Finish.ERROR
        assert [event.token for event in await answer(engine, spec("good"))] == [event.token for event in before]
        assert engine.health().state is State.READY

    play(scenario, loader(Greedy()))
