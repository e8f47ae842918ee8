"""Guides are checked each once, a few at a time, in processes that may die; nobody waits for another's for long."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from quintet.errors import BadRequest, EngineFailed, Overloaded, TooManyRequests
from quintet.forks import parent
from quintet.forks.child import STARTED
from quintet.guides import check as guide_check
from quintet.guides.check import AT_ONCE, MAX_WAITING, GuideCheck
from quintet.request import Guide, GuideKind
from quintet.turns import Turns

GOOD, BAD = Guide(GuideKind.REGEX, "a+", "f"), Guide(GuideKind.REGEX, "(", "f")
CUT = b'taken start: %json {"ty'
"""An answer that was cut short: it was taken for a guide, and kept."""
Whole = Callable[[bytes], bool]
SLOW = "root ::= " + " | ".join(f'"a{i}"' for i in range(20_000))


@asynccontextmanager
async def checking() -> AsyncIterator[GuideCheck]:
    check = GuideCheck()
    try:
        yield check
    finally:
        await check.close()


def run(body: Callable[[GuideCheck], Awaitable[None]]) -> None:
    async def go() -> None:
        async with checking() as check:
            await body(check)

    asyncio.run(go())


def held(check: GuideCheck, reply: bytes = b"taken x\0") -> tuple[list[bytes], asyncio.Event]:
    """What is asked of the processes, none of which answers before the event."""
    asked: list[bytes] = []
    answer = asyncio.Event()

    async def ready() -> None:
        """There is no process to be waited for."""

    async def ask(request: bytes, whole: Whole) -> bytes:
        asked.append(request)
        await answer.wait()
        return reply

    check._processes.ask = ask  # type: ignore[method-assign, assignment]
    check._processes.start = ready  # type: ignore[method-assign, assignment]
    return asked, answer


def test_what_is_known_is_not_checked_again() -> None:
    """Good and bad: the second answer needs no process."""

    async def body(check: GuideCheck) -> None:
        first = await check.translate([GOOD, None, GOOD])
        with pytest.raises(BadRequest):
            await check.translate([BAD])
        asked, _ = held(check)
        assert await check.translate([Guide(GuideKind.REGEX, "a+", "other")]) == {Guide(GuideKind.REGEX, "a+", "other"): first[GOOD]}
        with pytest.raises(BadRequest):
            await check.translate([BAD])
        assert asked == []

    run(body)


def test_equal_guides_at_once_are_checked_once_and_outlive_who_asked_first() -> None:
    async def body(check: GuideCheck) -> None:
        asked, answer = held(check)
        first, *others = [asyncio.create_task(check.translate([GOOD])) for _ in range(5)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        answer.set()
        assert await asyncio.gather(*others) == [{GOOD: "x"}] * 4
        assert asked == [b"REGEX\na+"]

    run(body)


def test_a_flood_of_guides_is_refused_beyond_those_that_may_wait_and_known_ones_pass() -> None:
    async def body(check: GuideCheck) -> None:
        known = await check.translate([GOOD])
        asked, answer = held(check)
        flood = [asyncio.create_task(check.translate([Guide(GuideKind.REGEX, f"b{i}", "f")])) for i in range(200)]
        while len(asked) < AT_ONCE or len(check._checks) < AT_ONCE + MAX_WAITING:
            await asyncio.sleep(0)
        assert len(asked) == AT_ONCE
        assert await check.translate([GOOD]) == known
        answer.set()
        ended = await asyncio.gather(*flood, return_exceptions=True)
        assert [type(one) for one in ended] == [dict] * (AT_ONCE + MAX_WAITING) + [Overloaded] * (200 - AT_ONCE - MAX_WAITING)
        assert (await check.translate([Guide(GuideKind.REGEX, "c", "f")])) and len(check._checks) == 0

    run(body)


def test_nobody_waits_for_slow_ones_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(check: GuideCheck) -> None:
        asked, answer = held(check)
        slow = [asyncio.create_task(check.translate([Guide(GuideKind.REGEX, f"b{i}", "f")])) for i in range(AT_ONCE)]
        while len(asked) < AT_ONCE:
            await asyncio.sleep(0)
        monkeypatch.setattr(guide_check, "WAIT_S", 0.01)
        with pytest.raises(Overloaded, match="Too many"):
            await check.translate([GOOD])
        monkeypatch.undo()
        answer.set()
        assert len(await asyncio.gather(*slow)) == AT_ONCE
        assert await check.translate([GOOD])

    run(body)


@pytest.mark.fault("B10")
def test_one_tenants_slow_guides_are_in_the_way_of_its_own_only() -> None:
    """Who floods is told so; another's guide is the next to be checked, and the third's the one after that."""

    async def body(check: GuideCheck) -> None:
        asked, answer = held(check)
        flood = [asyncio.create_task(check.translate([Guide(GuideKind.REGEX, f"b{i}", "f")], "flood")) for i in range(200)]
        while len(asked) < AT_ONCE:
            await asyncio.sleep(0)
        refused = [task for task in flood if task.done()]
        assert len(refused) > 100 and all(isinstance(task.exception(), TooManyRequests) for task in refused)
        others = [asyncio.create_task(check.translate([Guide(GuideKind.REGEX, f"{who}1", "f")], who)) for who in ("x", "y")]
        for _ in range(5):
            await asyncio.sleep(0)
        answer.set()
        await asyncio.gather(*others)
        assert asked.index(b"REGEX\nx1") <= AT_ONCE + 1 and asked.index(b"REGEX\ny1") <= AT_ONCE + 2
        await asyncio.gather(*flood, return_exceptions=True)
        assert not check._running and not check._checks

    run(body)


@pytest.mark.fault("B10")
def test_what_one_tenant_waits_for_is_checked_for_another_in_its_own_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same guide, in the midst of a flood: the flooder gives up waiting and is told that it is its own fault; nobody else is."""

    async def body(check: GuideCheck) -> None:
        _, answer = held(check)
        flood = [asyncio.create_task(check.translate([Guide(GuideKind.REGEX, f"b{i}", "f")], "flood")) for i in range(40)]
        same = asyncio.create_task(check.translate([Guide(GuideKind.REGEX, "b39", "f")], "x"))
        monkeypatch.setattr(guide_check, "WAIT_S", 0.05)
        ended = await asyncio.gather(*flood[AT_ONCE:], return_exceptions=True)
        assert {type(one) for one in ended} == {TooManyRequests}
        with pytest.raises(Overloaded):
            await same
        monkeypatch.undo()
        again = asyncio.create_task(check.translate([Guide(GuideKind.REGEX, "b39", "f")], "x"))
        await asyncio.sleep(0)
        answer.set()
        assert await again and await asyncio.gather(*flood[:AT_ONCE])

    run(body)


@pytest.mark.parametrize("seed", range(20))
def test_turns_are_fair_and_none_is_lost(seed: int) -> None:
    """Whoever gives up, and when: as many hold it as may, and between two turns of a line each other has one."""
    rng, holding, order = random.Random(seed), [0], list[str]()

    async def one(turns: Turns, tenant: str) -> None:
        await turns.acquire(tenant)
        holding[0] += 1
        assert holding[0] <= 2
        order.append(tenant)
        try:
            await asyncio.sleep(0)
        finally:
            holding[0] -= 1
            turns.release()

    async def go() -> None:
        turns = Turns(2)
        tasks = [asyncio.create_task(one(turns, tenant)) for tenant in "a" * 30 + "b" * 10 + "c" * 5]
        await asyncio.sleep(0)
        for task in rng.sample(tasks, 10):
            task.cancel()
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert holding == [0] and turns._free == 2 and not turns._lines

    asyncio.run(go())
    last = max(at for at, tenant in enumerate(order) if tenant == "c")
    assert order[2:last].count("a") <= order[2:last].count("c") + 2


def test_the_start_of_the_process_is_not_charged_to_the_guides_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than are checked at once, on a process that takes longer to start than any may wait."""
    slow = f"import time; time.sleep({2 * guide_check.WAIT_S / 10}); from quintet.guides.process import main; main()"
    monkeypatch.setattr(guide_check, "WAIT_S", guide_check.WAIT_S / 10)

    async def body(check: GuideCheck) -> None:
        check._processes.command = ("-c", slow)
        made = await asyncio.gather(*(check.translate([Guide(GuideKind.REGEX, f"b{i}", "f")]) for i in range(AT_ONCE + 1)))
        assert len(made) == AT_ONCE + 1

    run(body)


@pytest.mark.fault("B10", "B11")
def test_a_guide_that_ends_its_process_is_too_complex_and_the_next_is_checked() -> None:
    async def body(check: GuideCheck) -> None:
        for _ in range(2):
            with pytest.raises(BadRequest, match="too complex") as caught:
                await check.translate([Guide(GuideKind.GRAMMAR, SLOW, "f")])
            assert caught.value.code == "grammar_too_complex"
            assert await check.translate([GOOD])

    run(body)


@pytest.mark.parametrize("said", [b"", CUT])
@pytest.mark.parametrize("deaths", [1, 2])
def test_a_check_that_was_ended_from_outside_is_no_guides_fault_for_long(deaths: int, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends soon is made again; nobody is told for long that a guide is too complex of which nothing is known."""
    monkeypatch.setattr(guide_check, "SOON_S", 100.0)
    monkeypatch.setattr(guide_check, "DEATH_S", 0.0)

    async def body(check: GuideCheck) -> None:
        ask, asked = check._processes.ask, list[bytes]()

        async def dies(request: bytes, whole: Whole) -> bytes:
            asked.append(request)
            return said if len(asked) <= deaths else await ask(request, whole=whole)

        check._processes.ask = dies  # type: ignore[method-assign, assignment]
        if deaths == 2:
            with pytest.raises(BadRequest, match="too complex"):
                await check.translate([GOOD])
            while check._known:
                await asyncio.sleep(0.001)
            assert check._bytes == 0
        assert await check.translate([GOOD])
        assert len(asked) == deaths + 1

    run(body)


@pytest.mark.parametrize("said", [b"", CUT])
def test_a_machine_without_time_for_it_is_no_fault_of_the_guide(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, remembers nothing, and takes the guide when there is time."""

    async def only_begun(control: socket.socket, request: tuple[bytes, ...]) -> bytes:
        return STARTED + said

    async def body(check: GuideCheck) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(check._processes, "wall_s", 0.0)  # so its end comes after that, whatever it was
            patched.setattr(parent, "_exchange", only_begun)
            with pytest.raises(Overloaded, match="busy"):
                await check.translate([GOOD])
        assert await check.translate([GOOD])

    run(body)


async def killed(check: GuideCheck) -> subprocess.Popen[bytes]:
    """The process that has checked a guide."""
    await check.translate([GOOD])
    process = check._processes._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    return process


def test_a_process_that_was_killed_or_ended_idle_is_started_again() -> None:
    async def body(check: GuideCheck) -> None:
        (await killed(check)).wait()
        with pytest.raises(BadRequest):
            await check.translate([BAD])

    run(body)


def test_a_process_that_ends_is_waited_for_at_once() -> None:
    """It ends when it was idle for a minute, and was a zombie until the next guide came."""

    async def body(check: GuideCheck) -> None:
        process = await killed(check)
        while check._processes._process is not None:
            await asyncio.sleep(0.01)
        assert process.returncode == -signal.SIGKILL
        with pytest.raises(BadRequest):
            await check.translate([BAD])

    run(body)


def test_without_a_process_there_is_an_error_of_the_servers() -> None:
    async def body(check: GuideCheck) -> None:
        check._processes.command = ("-c", "raise SystemExit(1)")
        with pytest.raises(EngineFailed):
            await check.translate([GOOD])

    run(body)


@pytest.mark.fault("D12")
def test_where_no_process_can_be_started_there_is_an_error_of_the_servers_until_one_can() -> None:
    async def body(check: GuideCheck) -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            with pytest.raises(EngineFailed, match="cannot be checked"):
                await check.translate([GOOD])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert await check.translate([GOOD])

    run(body)


def test_closing_ends_what_is_being_checked() -> None:
    async def body(check: GuideCheck) -> None:
        held(check)
        waiting = asyncio.create_task(check.translate([GOOD]))
        await asyncio.sleep(0)
        await check.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(body)
