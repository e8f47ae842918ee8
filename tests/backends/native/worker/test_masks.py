"""Masks that take long, or never come, or break: the others' steps go on, and what is drawn in the end is what would have been."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.backends.native.worker.test_guided import JSON, WORDS, collect, run, running, spec
from tests.support.preparing import prepare

from quintet.backends.base import State
from quintet.backends.native.schedule.emit import FAILED
from quintet.backends.native.worker import masks, worker
from quintet.events import Blame, Finish, TokenEvent
from quintet.guides import matcher
from quintet.guides.matcher import U32, Matcher
from quintet.request import Guide, GuideKind

HEAVY = Guide(GuideKind.REGEX, "(heavy|hefty) stuff", "grammar")


@pytest.fixture
def heavy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heavy]:
    made = Heavy(monkeypatch)
    yield made
    made.go.set()


class Heavy:
    """Masks of what mentions ``heavy`` are made when they are allowed to, or do what else they are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.free = 0
        """So many are made at once."""
        self.fault: BaseException | None = None
        self.threads: set[int] = set()
        compile_, copy, fill = matcher.Compiler.compile, Matcher.copy, Matcher.fill
        mine: set[int] = set()
        kept: list[Matcher] = []  # or their ids would be given again

        def compiled(compiler: Any, grammar: str) -> Matcher:
            found = compile_(compiler, grammar)
            if "heavy" in grammar:
                kept.append(found)
                mine.add(id(found))
            return found

        def copied(one: Matcher) -> Matcher:
            made = copy(one)
            if id(one) in mine:
                kept.append(made)
                mine.add(id(made))
            return made

        def filled(one: Matcher, mask: U32) -> bool:
            if id(one) in mine and self.free:
                self.free -= 1
            elif id(one) in mine:
                self.begun.set()
                self.threads.add(threading.get_ident())
                assert self.go.wait(120)
                if self.fault is not None:
                    raise self.fault
            return fill(one, mask)

        monkeypatch.setattr(matcher.Compiler, "compile", compiled)
        monkeypatch.setattr(Matcher, "copy", copied)
        monkeypatch.setattr(Matcher, "fill", filled)
        monkeypatch.setattr(worker, "BEAT_S", 0.005)


@pytest.mark.fault("B10")
def test_a_mask_that_takes_long_holds_nobody_up(heavy: Heavy) -> None:
    """Its sequence sits out as many steps as others take, guided and not; then it gives what it gives alone."""

    async def go() -> None:
        async with running() as engine, asyncio.timeout(120):
            others = [spec(seed, guide, max_tokens=40) for seed in range(3) for guide in (None, WORDS)]
            heavy.go.set()
            alone = await run(engine, [spec(guide=HEAVY)])
            beside = await run(engine, others)
            heavy.go.clear()
            work = asyncio.create_task(run(engine, [spec(guide=HEAVY)]))
            await asyncio.to_thread(heavy.begun.wait, 120)
            for _ in range(2):
                assert await run(engine, others) == beside
            assert not work.done() and engine.health().state is State.READY
            heavy.go.set()
            assert await work == alone and alone[0][1] is Finish.EOS

    asyncio.run(go())


@pytest.mark.fault("B10")
@pytest.mark.parametrize("seed", range(6))
def test_bytes_do_not_depend_on_when_a_mask_comes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step waits for any, each comes when it likes; samples of one prompt, thinking apart, in pages for a few, preempted meanwhile."""
    rng, fill = random.Random(seed), Matcher.fill
    specs = [spec(one, guide, max_tokens=60, logprobs=2) for guide in (JSON, WORDS, None) for one in range(4)]
    specs += [spec(one, JSON, max_tokens=40, echo=True, logprobs=1, prompt="other: ") for one in range(2)]

    def told(events: list[list[TokenEvent]]) -> list[Any]:
        return [[(one.token, one.logprob, one.top, one.finish, one.error) for one in each] for each in events]

    async def given(**config: Any) -> list[Any]:
        async with running(**config) as engine, asyncio.timeout(120):
            return told(await collect(engine, await prepare(engine, specs)))

    expected = asyncio.run(given())

    def filled(one: Matcher, mask: U32) -> bool:
        time.sleep(rng.choice((0, 0, 0.0005, 0.003)))
        return fill(one, mask)

    monkeypatch.setattr(Matcher, "fill", filled)
    monkeypatch.setattr(masks, "WAIT_S", 0.0)
    assert asyncio.run(given(kv_bytes=64 * rng.choice((36, 60, 4096)))) == expected


@pytest.mark.fault("B10")
def test_masks_that_take_too_much_in_all_end_their_sequence_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "SLOW_S", 0.0)
    monkeypatch.setattr(masks, "TOTAL_S", 0.0)

    async def go() -> None:
        async with running() as engine, asyncio.timeout(120):
            bound, free = await collect(engine, await prepare(engine, [spec(), spec(guide=None, max_tokens=20)]))
            assert (bound[-1].finish, bound[-1].blame) == (Finish.ERROR, Blame.REQUEST) and "too complex" in bound[-1].error
            assert free[-1].finish in (Finish.EOS, Finish.LENGTH)

    asyncio.run(go())


@pytest.mark.fault("B10")
def test_a_mask_that_never_comes_ends_its_sequence_and_those_behind_it_go_on(heavy: Heavy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "HANG_S", 0.1)

    async def go() -> None:
        async with running() as engine, asyncio.timeout(120):
            for _ in range(2):
                ((event,),) = await collect(engine, await prepare(engine, [spec(guide=HEAVY)]))
                assert (event.finish, event.blame) == (Finish.ERROR, Blame.REQUEST) and "too complex" in event.error
            assert (await run(engine, [spec(guide=WORDS, max_tokens=90)]))[0][0]
            assert engine.live == 0 and engine.health().state is State.READY

    asyncio.run(go())


@pytest.mark.fault("B10")
@pytest.mark.parametrize("enough", [False, True])
def test_a_mask_that_a_busy_machine_makes_slowly_comes_all_the_same(heavy: Heavy, monkeypatch: pytest.MonkeyPatch, enough: bool) -> None:
    """However long it takes by the clock, as long as its thread gets on: what a request is answered is no matter of what else runs. What
    counts is processor time: of that there may be enough."""
    looks: list[int] = []

    def used(thread: int) -> float:
        looks.append(thread)
        return time.thread_time() + (masks.TOTAL_S + 100.0 if enough else 0.0) + 0.001 * len(looks)

    async def go() -> None:
        async with running() as engine, asyncio.timeout(120):
            heavy.go.set()
            alone = await run(engine, [spec(guide=HEAVY)])
            heavy.go.clear()
            monkeypatch.setattr(masks, "HANG_S", 0.02)
            monkeypatch.setattr(masks, "used_by", used)
            beside = asyncio.create_task(collect(engine, await prepare(engine, [spec(guide=HEAVY)])))
            while len(looks) < (1 if enough else 5):
                await asyncio.sleep(0.005)
            heavy.go.set()
            ((*_, end),) = await beside
            assert end.finish is (Finish.ERROR if enough else alone[0][1])
            assert enough or await run(engine, [spec(guide=HEAVY)]) == alone

    asyncio.run(go())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_processor_time_of_a_thread_is_told_while_it_is_there() -> None:
    until = time.thread_time() + 0.1
    while time.thread_time() < until:
        pass
    before = time.thread_time()
    assert before - 0.05 < masks.used_by(threading.get_native_id()) < time.thread_time() + 0.05
    assert masks.used_by(1 << 22) == 0.0


@pytest.mark.fault("B10")
def test_a_request_that_is_called_off_while_its_mask_is_made_ends_at_once(heavy: Heavy) -> None:
    async def go() -> None:
        async with running() as engine, asyncio.timeout(120):
            prepared = await prepare(engine, [spec(guide=HEAVY), spec(1, guide=HEAVY)])
            stream = engine.submit(prepared)
            await asyncio.to_thread(heavy.begun.wait, 120)
            engine.abort(prepared.request_id)
            assert [event.finish async for batch in stream for event in batch] == [Finish.ABORT] * 2
            heavy.go.set()
            assert (await run(engine, [spec(guide=HEAVY)]))[0][1] is Finish.EOS

    asyncio.run(go())


@pytest.mark.fault("B10")
def test_a_mask_that_never_comes_and_that_nobody_waits_for_any_more_holds_up_no_other_slow_one(
    heavy: Heavy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both samples are called off: the one whose mask is being made, and the one whose mask would be the next."""
    monkeypatch.setattr(masks, "SLOW_S", 0.0)

    async def go() -> None:
        async with running() as engine, asyncio.timeout(120):
            heavy.free = 2  # then both are slow
            gone = await prepare(engine, [spec(guide=HEAVY), spec(1, guide=HEAVY)])
            stream = engine.submit(gone)
            await asyncio.to_thread(heavy.begun.wait, 120)
            engine.abort(gone.request_id)
            assert [event.finish async for batch in stream for event in batch if event.finish] == [Finish.ABORT] * 2
            slow = engine.submit(await prepare(engine, [spec(guide=WORDS)]))
            assert not (await anext(slow))[-1].finish
            monkeypatch.setattr(masks, "HANG_S", 0.1)
            assert [event.finish async for batch in slow for event in batch if event.finish], "it ends, be it with its own mask given up"
            assert engine.live == 0 and engine.health().state is State.READY

    asyncio.run(go())


class Panic(BaseException):
    """What a panic of the library becomes: no ``Exception``."""


@pytest.mark.fault("C08")
@pytest.mark.parametrize("fault", [RuntimeError("secret"), Panic("secret"), MemoryError()])
def test_a_guide_that_throws_ends_its_request_only(heavy: Heavy, fault: BaseException) -> None:
    async def go() -> None:
        async with running() as engine, asyncio.timeout(120):
            others = [spec(seed, guide, max_tokens=40) for seed in range(2) for guide in (None, WORDS)]
            beside = await run(engine, others)
            heavy.fault = fault
            heavy.go.set()
            both = await asyncio.gather(run(engine, others), collect(engine, await prepare(engine, [spec(guide=HEAVY)])))
            ((event,),) = both[1]
            assert (event.finish, event.error, event.blame) == (Finish.ERROR, FAILED, Blame.SERVER)
            assert both[0] == beside and await run(engine, others) == beside

    asyncio.run(go())


@pytest.mark.fault("C08")
def test_a_limit_that_one_request_meets_in_a_guide_is_no_other_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both follow the same guide, which remembers its states, and its errors: the long text meets the limit, the short one does not."""
    from quintet.guides.llguidance import LLParserLimits

    monkeypatch.setattr(matcher, "_limits", lambda _: LLParserLimits(max_lexer_states=100, verbose_errors=False))
    letters = Guide(GuideKind.REGEX, "[a-z]{1,200}", "grammar")
    short, long = spec(guide=letters, max_tokens=20), spec(guide=letters, max_tokens=200)

    async def go() -> None:
        async with running() as engine, asyncio.timeout(120):
            alone = await run(engine, [short])
            assert alone[0][1] is Finish.LENGTH
            for _ in range(2):
                assert (await run(engine, [long]))[0][1] is Finish.ERROR
                assert await run(engine, [short]) == alone
            assert (await run(engine, [long, short]))[1] == alone[0]

    asyncio.run(go())
