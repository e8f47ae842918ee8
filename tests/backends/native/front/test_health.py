"""What an engine says of itself: ready, stalled, draining, and how long requests waited."""

from __future__ import annotations

import asyncio

import pytest
from tests.backends.native.front.test_engine import Clock, Gate, answer, loader, play, spec, until
from tests.support.preparing import prepare

from quintet.backends.base import State
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.watchdog import SLOW_STEPS, STALL_S
from quintet.errors import Overloaded
from quintet.events import Finish


@pytest.mark.fault("C03", "D15")
def test_an_engine_is_stalled_when_work_waits_and_no_step_ends_and_not_when_it_is_idle() -> None:
    """Liveness measures progress, not the port."""
    gate, clock = Gate(), Clock()

    async def scenario(engine: Engine) -> None:
        await until(engine, State.READY)
        clock.now += 1000
        assert engine.health().state is State.READY, "idle is not stalled"
        work = asyncio.create_task(answer(engine, spec()))
        while not gate.entered.is_set():
            await asyncio.sleep(0.001)
        clock.now += STALL_S
        assert engine.health().state is State.READY
        more = asyncio.create_task(answer(engine, spec("other")))
        while engine.live < 2:
            await asyncio.sleep(0.001)
        clock.now += 0.1
        assert engine.health().state is State.STALLED, "that more comes is no progress"
        gate.open.set()
        await asyncio.gather(work, more)
        assert engine.health().state is State.READY

    play(scenario, loader(gate), clock=clock)


def test_an_engine_whose_steps_have_been_seen_to_take_long_is_given_longer() -> None:
    gate, clock = Gate(), Clock()

    async def scenario(engine: Engine) -> None:
        await until(engine, State.READY)
        work = asyncio.create_task(answer(engine, spec(max_tokens=1)))
        await asyncio.to_thread(gate.entered.wait, 120)
        clock.now += STALL_S - 1
        gate.open.set()
        await work
        gate.open.clear()
        gate.entered.clear()
        work = asyncio.create_task(answer(engine, spec("other", 1)))
        await asyncio.to_thread(gate.entered.wait, 120)
        clock.now += SLOW_STEPS * (STALL_S - 1)
        assert engine.health().state is State.READY
        clock.now += 0.1
        assert engine.health().state is State.STALLED
        gate.open.set()
        await work

    play(scenario, loader(gate), clock=clock)


def test_an_engine_that_drains_says_so_refuses_work_and_finishes_what_it_has() -> None:
    gate = Gate()

    async def scenario(engine: Engine) -> None:
        await until(engine, State.READY)
        late = await prepare(engine, [spec()])
        work = asyncio.create_task(answer(engine, spec()))
        await asyncio.to_thread(gate.entered.wait, 120)
        engine.drain()
        assert engine.health().state is State.DRAINING
        with pytest.raises(Overloaded):
            await prepare(engine, [spec()])
        gate.open.set()
        assert (await work)[-1].finish is Finish.LENGTH
        assert [event.finish async for batch in engine.submit(late) for event in batch][-1] is Finish.LENGTH, "it was taken before"
        assert (engine.health().state, engine.live) == (State.DRAINING, 0)
        await engine.close()
        assert engine.health().state is State.CLOSED

    play(scenario, loader(gate))


def test_the_first_event_tells_how_long_the_request_waited() -> None:
    gate, clock = Gate(), Clock()

    async def scenario(engine: Engine) -> None:
        await until(engine, State.READY)
        first = asyncio.create_task(answer(engine, spec()))
        while not gate.entered.is_set():
            await asyncio.sleep(0.001)
        second = asyncio.create_task(answer(engine, spec("other")))
        while engine.live < 2:
            await asyncio.sleep(0.001)
        clock.now += 3
        gate.open.set()
        assert [[event.waited for event in await work] for work in (first, second)] == [[0.0] * 5, [3.0, 0.0, 0.0, 0.0, 0.0]]

    play(scenario, loader(gate), clock=clock)
