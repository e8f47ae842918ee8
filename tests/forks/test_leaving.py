"""Work that nobody waits for any more is ended, whatever it is doing; what others wait for goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quintet.forks.parent import Forks

PROGRAM = """
import itertools, os, time
from pathlib import Path
from quintet.forks import child

def work(client):
    what, _, about = client.makefile("rb").read().decode().partition(" ")
    if what == "there":
        there = []
        for process in about.split():
            try:
                os.kill(int(process), 0)
            except ProcessLookupError:
                continue
            there.append(process)
        client.sendall(" ".join(there).encode())
        return
    begun = Path(about, what)
    begun.with_suffix(".new").write_text(str(os.getpid()))
    begun.with_suffix(".new").rename(begun)
    if what == "computes":
        max(itertools.repeat(0))  # no end, and no line of Python in between
    while not Path(about, "go").exists():
        time.sleep(0.01)
    client.sendall(b"done")

child.serve(work, child.Bounds(600.0, 600.0, 1 << 31))
"""

FRONT = """
import asyncio, sys
from quintet.forks.parent import Forks

async def ask():
    forks = Forks("", 600.0, "Nothing can be asked.")
    forks.command = ("-c", sys.argv[1])
    await forks.ask(b"computes " + sys.argv[2].encode())

asyncio.run(ask())
"""

PATIENCE_S = 120


@contextlib.contextmanager
def asking() -> Iterator[Forks]:
    forks = Forks("", 600.0, "Nothing can be asked.")
    forks.command = ("-c", PROGRAM)
    try:
        yield forks
    finally:
        forks.close()


async def begun(folder: Path, what: str) -> int:
    """The process that does it."""
    while not (folder / what).exists():
        await asyncio.sleep(0.01)
    return int((folder / what).read_text())


async def gone(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(process, 0)
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def left_alone(folder: Path) -> Iterator[None]:
    """A test that fails leaves nothing behind that computes."""
    try:
        yield
    finally:
        (folder / "go").touch()
        if (folder / "computes").exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int((folder / "computes").read_text()), signal.SIGKILL)


@pytest.mark.fault("E06")
def test_what_nobody_waits_for_has_ended_before_the_next_piece_begins(tmp_path: Path) -> None:
    """And what another waits for meanwhile goes on."""

    async def scenario() -> None:
        with asking() as forks, left_alone(tmp_path):
            async with asyncio.timeout(PATIENCE_S):
                other = asyncio.create_task(forks.ask(f"waits {tmp_path}".encode()))
                waits = await begun(tmp_path, "waits")
                leaving = asyncio.create_task(forks.ask(f"computes {tmp_path}".encode()))
                computes = await begun(tmp_path, "computes")
                leaving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await leaving
                assert await forks.ask(f"there {computes} {waits}".encode()) == str(waits).encode()
                (tmp_path / "go").touch()
                assert await other == b"done"

    asyncio.run(scenario())


@pytest.mark.fault("E06")
def test_what_nobody_waits_for_is_ended_though_no_other_piece_comes(tmp_path: Path) -> None:
    async def scenario() -> None:
        with asking() as forks, left_alone(tmp_path):
            async with asyncio.timeout(PATIENCE_S):
                leaving = asyncio.create_task(forks.ask(f"computes {tmp_path}".encode()))
                computes = await begun(tmp_path, "computes")
                leaving.cancel()
                await gone(computes)

    asyncio.run(scenario())


def test_what_a_server_that_was_killed_has_asked_for_is_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        with left_alone(tmp_path), subprocess.Popen([sys.executable, "-c", FRONT, PROGRAM, str(tmp_path)]) as front:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    computes = await begun(tmp_path, "computes")
                    front.kill()
                    await gone(computes)
            finally:
                front.kill()

    asyncio.run(scenario())
