"""Work off the event loop: one piece at a time, tenants in turn."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from quintet.errors import Overloaded
from quintet.executor import FairExecutor


class Held:
    """Work that takes until it is let go, and tells when it ran."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.at_once = self.most = 0
        self.go = threading.Event()
        self.begun = threading.Event()

    def work(self, name: str) -> Callable[[], str]:
        def run() -> str:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            self.begun.set()
            assert self.go.wait(60)
            self.order.append(name)
            self.at_once -= 1
            return name

        return run


@pytest.mark.fault("B21")
def test_tenants_take_turns_however_many_pieces_one_of_them_has() -> None:
    async def scenario() -> Held:
        executor, held = FairExecutor(), Held()
        names = [("a", f"a{number}") for number in range(5)] + [("b", "b0"), ("b", "b1"), ("c", "c0")]
        tasks = [asyncio.create_task(executor.run(tenant, held.work(name))) for tenant, name in names]
        await asyncio.to_thread(held.begun.wait)
        held.go.set()
        assert await asyncio.gather(*tasks) == [name for _, name in names]
        return held

    held = asyncio.run(scenario())
    assert held.order == ["a0", "a1", "b0", "c0", "a2", "b1", "a3", "a4"]
    assert held.most == 1


def test_what_nobody_waits_for_any_more_is_not_run_and_what_it_waited_behind_goes_on() -> None:
    async def scenario() -> list[str]:
        executor, held = FairExecutor(), Held()
        running, dropped, last = (asyncio.create_task(executor.run("a", held.work(name))) for name in ("first", "dropped", "last"))
        await asyncio.to_thread(held.begun.wait)
        dropped.cancel()
        running.cancel()  # a thread cannot be stopped: the next piece waits for its end
        await asyncio.wait({running, dropped})
        assert not held.order
        held.go.set()
        await last
        return held.order

    assert asyncio.run(scenario()) == ["first", "last"]


def test_a_disk_that_does_not_answer_holds_up_no_text() -> None:
    async def scenario() -> str:
        executor, answered = FairExecutor(), threading.Event()
        uploads = [asyncio.create_task(asyncio.to_thread(answered.wait, 60)) for _ in range(64)]  # as many as there may be
        await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(executor.run("a", lambda: "read"), 10)
        finally:
            answered.set()
            await asyncio.gather(*uploads)

    assert asyncio.run(scenario()) == "read"


def test_an_error_is_its_callers_and_the_next_piece_runs() -> None:
    def broken() -> None:
        raise ValueError("no")

    async def scenario() -> str:
        executor = FairExecutor()
        with pytest.raises(ValueError, match="no"):
            await executor.run("a", broken)
        return await executor.run("a", lambda: "yes")

    assert asyncio.run(scenario()) == "yes"


@pytest.mark.fault("D12")
def test_where_no_thread_is_to_be_had_that_is_told_and_the_next_piece_runs_when_there_is() -> None:
    """The turn was never given back: from then on no long text of anybody's was read, and no client was told."""

    async def scenario() -> str:
        executor = FairExecutor()
        usual = threading.stack_size(1 << 46)  # more than any machine has addresses for
        try:
            with pytest.raises(Overloaded, match="no thread"):
                await executor.run("a", lambda: "no")
        finally:
            threading.stack_size(usual)
        return await asyncio.wait_for(executor.run("b", lambda: "yes"), 60)

    assert asyncio.run(scenario()) == "yes"


def test_nothing_of_what_raised_waits_for_a_collection() -> None:
    """A future keeps its exception, whose traceback keeps the frames that keep the future; and these have the request's texts and ids."""

    class Ids:
        pass

    async def scenario() -> weakref.ref[Ids]:
        executor, made = FairExecutor(), list[weakref.ref[Ids]]()

        def work() -> None:
            ids = Ids()
            made.append(weakref.ref(ids))
            raise ValueError(ids)

        with contextlib.suppress(ValueError):
            await executor.run("a", work)
        return made[0]

    gc.disable()
    try:
        assert asyncio.run(scenario())() is None
    finally:
        gc.enable()


def test_no_thread_stays_when_its_work_is_done() -> None:
    before = threading.active_count()

    async def scenario() -> None:
        executor = FairExecutor()
        assert await asyncio.gather(*(executor.run("a", lambda: threading.current_thread().name) for _ in range(3)))
        while threading.active_count() > before:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(scenario(), 60))
