"""Guides that take long to compile: the steps go on, nobody takes the engine for one that hangs, and none takes for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.preparing import prepare

from quintet.backends.base import State
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.watchdog import STALL_S
from quintet.backends.native.wire.messages import EventRow, Submit
from quintet.backends.native.worker import worker
from quintet.backends.native.worker.compiling import BROKEN, COMPILE_S, NO_THREAD, TOO_SLOW, Compiling
from quintet.backends.toy import toy_loader
from quintet.config import EngineConfig
from quintet.events import Blame, Finish, TokenEvent
from quintet.guides import compiled, heap
from quintet.guides.compiled import Guides
from quintet.inputs.sequence import PreparedSequence, SequenceSpec
from quintet.request import Guide, GuideKind, Sampling

SLOW = Guide(GuideKind.REGEX, "slow", "grammar")
QUICK = Guide(GuideKind.REGEX, "quick", "grammar")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Compiler:
    """In the place of the library's: what mentions ``slow`` is compiled when it is allowed to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        compile_ = Guides._compiled

        def compiled(guides: Guides, grammar: str) -> Any:
            if "slow" in grammar and not guides.ready(grammar):
                self.begun.set()
                assert self.go.wait(120)
            return compile_(guides, grammar)

        monkeypatch.setattr(Guides, "_compiled", compiled)
        monkeypatch.setattr(worker, "BEAT_S", 0.005)


@asynccontextmanager
async def running(clock: Callable[[], float]) -> AsyncIterator[Engine]:
    engine = Engine(toy_loader(), EngineConfig(kv_bytes=1 << 20), clock=clock)
    try:
        while engine.health().state is not State.READY:
            await asyncio.sleep(0.001)
        yield engine
    finally:
        await engine.close()


def spec(guide: Guide | None) -> SequenceSpec:
    return SequenceSpec("make: ", 20, Sampling(0.0, 1.0, 0), None, False, guide=guide)


async def answer(engine: Engine, guide: Guide | None) -> list[TokenEvent]:
    prepared = await prepare(engine, [spec(guide)])
    return [event async for batch in engine.submit(prepared) for event in batch]


def text(events: list[TokenEvent]) -> bytes:
    return b"".join(event.piece for event in events)


async def pass_by(engine: Engine, clock: Clock, seconds: float) -> None:
    """Time goes by, in which the engine is looked at."""
    for _ in range(int(seconds)):
        clock.now += 1
        beats = 0
        while beats < 3:  # what was on its way is there
            await asyncio.sleep(0.005)
            beats += 1
        while engine.health().state is not State.READY:  # only as long as the next beat is on its way
            await asyncio.sleep(0.001)


def test_an_engine_that_only_compiles_for_longer_than_the_stall_time_is_not_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, clock = Compiler(monkeypatch), Clock()

    async def go() -> None:
        async with running(clock) as engine, asyncio.timeout(120):
            work = asyncio.create_task(answer(engine, SLOW))
            await asyncio.to_thread(compiler.begun.wait, 120)
            assert COMPILE_S > STALL_S + 2, "else this shows nothing"
            await pass_by(engine, clock, STALL_S + 2)
            assert not work.done()
            assert text(await answer(engine, None)), "and the others are served"
            compiler.go.set()
            assert text(await work) == b"slow"

    asyncio.run(go())


@pytest.mark.fault("C08")
def test_a_compile_that_does_not_end_ends_its_request_in_time_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, clock = Compiler(monkeypatch), Clock()

    async def go() -> None:
        async with running(clock) as engine, asyncio.timeout(120):
            hanging = asyncio.create_task(answer(engine, SLOW))
            await asyncio.to_thread(compiler.begun.wait, 120)
            behind = asyncio.create_task(answer(engine, QUICK))
            await pass_by(engine, clock, COMPILE_S - 1)
            assert not hanging.done() and not behind.done()
            await pass_by(engine, clock, 2)
            (end,) = await hanging
            assert (end.finish, end.error, end.blame) == (Finish.ERROR, TOO_SLOW, Blame.LOAD)
            assert text(await behind) == b"quick"
            compiler.go.set()  # it ends after all, and nobody is surprised
            assert text(await answer(engine, SLOW)) == b"slow"
            assert engine.live == 0

    asyncio.run(go())


@pytest.mark.fault("C08")
def test_a_guide_that_no_thread_can_be_had_for_is_for_its_client_to_send_again_and_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    start, tries = threading.Thread.start, 0

    def refuse(thread: threading.Thread) -> None:
        nonlocal tries
        if thread.name.startswith("quintet-guides"):
            tries += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    async def go() -> None:
        async with running(Clock()) as engine, asyncio.timeout(120):
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", refuse)
                guided = [answer(engine, QUICK), answer(engine, Guide(GuideKind.REGEX, "other", "grammar"))]
                *ends, plain = await asyncio.gather(*guided, answer(engine, None))
                told = [(end.finish, end.error, end.blame) for (end,) in ends]
                assert (told, tries) == ([(Finish.ERROR, NO_THREAD, Blame.LOAD)] * 2, 2)
                assert text(plain)
            made = set[str]()
            compile_ = Guides._compiled

            def compiled(guides: Guides, grammar: str) -> Any:
                made.add(grammar)
                return compile_(guides, grammar)

            monkeypatch.setattr(Guides, "_compiled", compiled)
            assert text(await answer(engine, QUICK)) == b"quick", "when there are threads again"
            assert len(made) == 1, "and what was refused is not compiled for nobody"
            assert engine.live == 0

    asyncio.run(go())


@pytest.mark.fault("E08")
def test_a_request_that_is_called_off_ends_at_once_though_its_guide_is_still_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, clock = Compiler(monkeypatch), Clock()

    async def go() -> None:
        async with running(clock) as engine, asyncio.timeout(120):
            prepared = await prepare(engine, [spec(SLOW), spec(SLOW)])
            stream = engine.submit(prepared)
            await asyncio.to_thread(compiler.begun.wait, 120)
            engine.abort(prepared.request_id, 1)
            engine.abort(prepared.request_id)
            assert [event.finish async for batch in stream for event in batch] == [Finish.ABORT] * 2
            before = engine.health().counts.tokens
            compiler.go.set()
            assert text(await answer(engine, QUICK)) == b"quick"
            assert engine.live == 0
            again = engine.health().counts.tokens
            assert text(await answer(engine, QUICK)) == b"quick"
            assert engine.health().counts.tokens - again == again - before, "of what was called off nothing was computed"

    asyncio.run(go())


@pytest.mark.fault("E08")
def test_a_sequence_that_is_called_off_while_its_guide_is_compiled_takes_no_other_along(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, clock = Compiler(monkeypatch), Clock()

    async def go() -> None:
        async with running(clock) as engine, asyncio.timeout(120):
            prepared = await prepare(engine, [spec(SLOW), spec(SLOW), spec(SLOW)])
            stream = engine.submit(prepared)
            await asyncio.to_thread(compiler.begun.wait, 120)
            engine.abort(prepared.request_id, 1)
            assert text(await answer(engine, None)), "by now that is heard"
            compiler.go.set()
            events = [event async for batch in stream for event in batch]
            told = [text([event for event in events if event.seq == seq]) for seq in range(3)]
            assert told == [b"slow", b"", b"slow"]
            assert [event.finish for event in events if event.seq == 1] == [Finish.ABORT]

    asyncio.run(go())


@pytest.mark.fault("C08")
def test_a_compiler_that_breaks_ends_the_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(guides: Guides, grammar: str) -> Any:
        raise MemoryError

    async def go() -> None:
        async with running(Clock()) as engine, asyncio.timeout(120):
            prepared = await prepare(engine, [spec(QUICK)])
            monkeypatch.setattr(Guides, "_compiled", broken)
            (end,) = [event async for batch in engine.submit(prepared) for event in batch]
            assert (end.finish, end.error) == (Finish.ERROR, BROKEN)
            assert text(await answer(engine, None))

    asyncio.run(go())


def test_a_guide_that_gave_way_to_others_before_it_was_followed_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As somebody else's grew meanwhile; here there is room for one of a request's two."""
    monkeypatch.setattr(compiled, "CACHE_BYTES", compiled.LEAST_BYTES * 3 // 2)
    monkeypatch.setattr(heap, "in_use", lambda: 0)  # so each is of the least size

    async def go() -> None:
        async with running(Clock()) as engine, asyncio.timeout(120):
            guides = [QUICK, Guide(GuideKind.REGEX, "quiet", "grammar")]
            made: dict[int, list[TokenEvent]] = {0: [], 1: []}
            async for batch in engine.submit(await prepare(engine, list(map(spec, guides)))):
                for event in batch:
                    made[event.seq].append(event)
            assert [text(events) for events in made.values()] == [b"quick", b"quiet"]

    asyncio.run(go())


@pytest.mark.fault("B10")
def test_one_tenants_guides_are_in_the_way_of_its_own_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty of its wait to be compiled; another's is the next but one."""
    compiler, compile_, order = Compiler(monkeypatch), Guides._compiled, list[str]()

    def compiled(guides: Guides, grammar: str) -> Any:
        found = compile_(guides, grammar)
        order.append(grammar.partition("/")[2].partition("/")[0])
        return found

    monkeypatch.setattr(Guides, "_compile", lambda guides, grammars, then: [compiled(guides, one) for one in grammars] and then(True))

    async def go() -> None:
        async with running(Clock()) as engine, asyncio.timeout(120):
            flood = [Guide(GuideKind.REGEX, f"slow{at}", "grammar") for at in range(20)]
            prepared = [await prepare(engine, [spec(guide)], "flood") for guide in flood]
            other = await prepare(engine, [spec(QUICK)], "other")
            streams = [engine.submit(one) for one in [*prepared, other]]
            await asyncio.to_thread(compiler.begun.wait, 120)
            await pass_by(engine, Clock(), 1)
            compiler.go.set()
            for stream in streams:
                assert [event async for batch in stream for event in batch]
            assert order.index("quick") <= 2 and len(order) == 21

    asyncio.run(go())


@pytest.mark.fault("B10")
def test_guides_of_requests_that_were_called_off_before_their_turn_are_not_compiled() -> None:
    class Slow:
        """Notes what is begun; ends nothing by itself."""

        def __init__(self) -> None:
            self.begun: list[str] = []

        def ready(self, _: str) -> bool:
            return False

        def start(self, grammars: Sequence[str], then: Callable[[bool], None]) -> None:
            self.begun += grammars
            self.then = then

        def restart(self) -> None: ...

    guides, done = Slow(), list[int]()
    compiling = Compiling(guides, Clock(), done.append)
    for number, tenant in enumerate("aabab"):
        sequence = PreparedSequence((1,), 5, Sampling(0.0, 1.0, 0), None, echo=False, grammar=f"g{number}")
        assert compiling.begin(Submit.of(number, (sequence,), 0.0, tenant=tenant))
    for number in (0, 1, 2, 3):
        (rows,) = (compiling.abort(number, None) or {}).values()
        assert [isinstance(row, EventRow) and row.finish for row in rows] == [Finish.ABORT]
    assert (len(compiling), compiling.sequences) == (2, 1), "the one that was begun, and the last"
    for number in (0, 4):
        guides.then(True)
        assert done.pop() == number
        compiling.end(number)
    assert guides.begun == ["g0", "g4"]
    assert len(compiling) == 0
