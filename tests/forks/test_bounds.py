"""What a piece of work may take, what becomes of its answer, and a program that ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from quintet.errors import Overloaded
from quintet.forks.parent import Forks

PROGRAM = """
import itertools, os, signal, time
from quintet.forks import child

{before}

def work(client):
    what = client.makefile("rb").read().decode()
    if what == "computes":
        max(itertools.repeat(0))
    if what == "sleeps":
        time.sleep(600)
    if what == "takes":
        client.sendall(str(len(bytes(1 << 30))).encode())
    client.sendall(b"done")

child.serve(work, child.Bounds({bounds}))
"""
AMPLE = "600.0, 600.0, 1 << 29"


def played(scenario: Callable[[Forks], Awaitable[None]], bounds: str = AMPLE, before: str = "") -> None:
    async def go() -> None:
        forks = Forks("", 600.0, "Nothing can be asked.")
        forks.command = ("-c", PROGRAM.format(bounds=bounds, before=before))
        with contextlib.closing(forks):
            async with asyncio.timeout(120):
                await scenario(forks)

    asyncio.run(go())


def pid(forks: Forks) -> int:
    assert forks._process is not None
    return forks._process.pid


@pytest.mark.parametrize(
    ("what", "bounds"), [("computes", "0.05, 600.0, 1 << 29"), ("sleeps", "600.0, 0.05, 1 << 29"), ("takes", "600.0, 600.0, 1 << 29")]
)
def test_a_piece_that_takes_more_than_it_may_is_ended_without_an_answer_and_the_program_is_not(what: str, bounds: str) -> None:
    async def scenario(forks: Forks) -> None:
        assert await forks.ask(what.encode()) == b""
        assert forks._process is not None and forks._process.poll() is None

    played(scenario, bounds)


def test_an_answer_that_broke_off_after_all_its_time_may_be_asked_for_again_and_a_whole_one_is_taken() -> None:
    async def scenario(forks: Forks) -> None:
        assert await forks.ask(b"", whole=lambda answer: answer == b"all") == b"done", "it died of itself"
        forks.wall_s = 0.0
        assert await forks.ask(b"") == b"done"
        with pytest.raises(Overloaded, match=r"^The machine is too busy: nothing can be asked now; try again later\.$"):
            await forks.ask(b"", whole=lambda answer: answer == b"all")

    played(scenario)


def test_a_program_that_has_just_ended_is_started_again_for_the_piece_that_finds_it_so() -> None:
    async def scenario(forks: Forks) -> None:
        await forks.ask(b"")
        assert forks._process is not None
        forks._process.kill()
        forks._process.wait()
        assert await forks.ask(b"") == b"done"

    played(scenario)


def test_all_that_find_the_program_ended_start_one_other() -> None:
    async def scenario(forks: Forks) -> None:
        await forks.ask(b"")
        os.kill(pid(forks), signal.SIGSTOP)  # so that both are on their way
        asked = [asyncio.create_task(forks.ask(b"")) for _ in range(2)]
        for _ in range(3):
            await asyncio.sleep(0)
        os.kill(pid(forks), signal.SIGKILL)
        assert await asyncio.gather(*asked) == [b"done", b"done"]

    played(scenario)


def test_a_terminals_interrupt_does_not_end_the_program_nor_do_signals_that_it_was_started_to_ignore() -> None:
    async def scenario(forks: Forks) -> None:
        await forks.start()
        program = pid(forks)
        os.kill(program, signal.SIGINT)
        leaving = asyncio.create_task(forks.ask(b"sleeps"))
        for _ in range(3):
            await asyncio.sleep(0)
        leaving.cancel()
        for _ in range(2):
            assert await forks.ask(b"") == b"done"
        assert pid(forks) == program

    played(scenario, before="signal.signal(signal.SIGCHLD, signal.SIG_IGN)")
