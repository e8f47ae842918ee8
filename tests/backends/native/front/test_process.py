"""The link to a process: what is taken of a child that dies, reads nothing or talks nonsense. On both event loops that it runs on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest
import uvloop

from quintet.backends.native.front import connection
from quintet.backends.native.front.process import ProcessLink
from quintet.backends.native.wire.messages import Died, FromWorker, ModelSource, Progress, Started, Submit
from quintet.backends.toy import ToyTokenizer
from quintet.config import EngineConfig
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Sampling

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CHILD = """
import os, signal, socket, sys, time
from quintet.backends.native.wire.codec import encode
from quintet.backends.native.wire.messages import Died, Progress, Started
sock = socket.socket(fileno=int(sys.argv[1]))
"""
"""What a child begins with."""

Run = Callable[[Coroutine[None, None, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a scenario on one of the loops, after which no descriptor may be left."""
    go = asyncio.run if request.param == "asyncio" else uvloop.run
    go(asyncio.sleep(0))
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield lambda scenario: go(asyncio.wait_for(scenario, 60))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


class Link:
    """To a child that does as it is written, and what came from it."""

    def __init__(self, child: str) -> None:
        self.heard: list[FromWorker] = []
        self.died = asyncio.Event()
        self.link = ProcessLink(ModelSource("", 1, None, "toy"), ToyTokenizer, EngineConfig(), ("-c", CHILD + child))
        self.link.start(self._hear)

    def _hear(self, message: FromWorker) -> None:
        self.heard.append(message)
        if isinstance(message, Died):
            self.died.set()

    async def __aenter__(self) -> Link:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.close()


def submit(tokens: int) -> Submit:
    return Submit.of(1, [PreparedSequence((1,) * tokens, 5, Sampling(0.0, 1.0, 0), None, echo=False)], 0.0)


def test_everything_that_a_child_said_before_its_death_is_heard_and_then_its_death_once(run: Run) -> None:
    async def scenario() -> None:
        async with Link("""
for each in range(1000):
    sock.sendall(encode(Started((each,))))
os.kill(os.getpid(), signal.SIGKILL)
""") as link:
            await link.died.wait()
            await asyncio.sleep(0.05)
            assert link.heard[:-1] == [Started((each,)) for each in range(1000)]
            assert isinstance(link.heard[-1], Died)

    run(scenario())


def test_what_a_dead_child_said_is_heard_though_it_is_still_being_written_to(run: Run) -> None:
    """It may be what tells whose request killed it."""

    async def scenario() -> None:
        async with Link("""
sock.sendall(encode(Progress(0.5)))
while not sock.recv(1 << 20).endswith(b"go"):
    pass
for each in range(100):
    sock.sendall(encode(Started((each,))))
os.kill(os.getpid(), signal.SIGKILL)
""") as link:
            child = link.link._child
            assert child is not None
            while not link.heard or child._transport is None:
                await asyncio.sleep(0.001)
            child._transport.write(b"go")
            os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)  # the event loop has read nothing meanwhile
            for _ in range(10):
                link.link.send(submit(1))
            await link.died.wait()
            assert link.heard[:-1] == [Progress(0.5), *(Started((each,)) for each in range(100))]

    run(scenario())


def test_a_child_that_reads_nothing_is_given_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_BACKLOG", 1 << 20)

    async def scenario() -> None:
        async with Link("time.sleep(1000)") as link:
            while not link.died.is_set():
                link.link.send(submit(10_000))
                await asyncio.sleep(0)
            assert link.heard == [Died("the engine reads nothing.")]
            link.link.send(submit(1))

    run(scenario())


@pytest.mark.parametrize(
    "bytes_of", ["b'\\xff' * 100", "b'\\x02\\0\\0\\0\\x91\\xa0'", "encode(Progress(0.5)).replace(b'Progress', b'Projects')"], ids=str
)
def test_a_child_that_talks_nonsense_is_given_up_and_nothing_else_it_says_is_believed(run: Run, bytes_of: str) -> None:
    async def scenario() -> None:
        async with Link(f"sock.sendall({bytes_of} + encode(Progress(1.0)))\ntime.sleep(1000)") as link:
            await link.died.wait()
            await asyncio.sleep(0.05)
            assert link.heard == [Died("the engine sent nonsense.")]

    run(scenario())


def test_a_child_that_is_killed_at_once_or_not_waited_for_leaves_nothing(run: Run) -> None:
    async def scenario() -> None:
        for pause_s in (None, 0.0, 0.02):
            async with Link("time.sleep(1000)") as link:
                if pause_s is not None:
                    await asyncio.sleep(pause_s)
                link.link.kill()
                assert link.heard == [Died("the engine was killed.")]
                link.link.kill()
                link.link.start(link._hear)
            assert len(link.heard) == 1, "nothing is heard after closing"

    run(scenario())


@pytest.mark.fault("D12")
def test_a_process_that_cannot_be_started_is_told_and_leaves_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(12, "Cannot allocate memory")

        monkeypatch.setattr(subprocess, "Popen", refuse)
        async with Link("") as link:
            await link.died.wait()
            assert link.heard == [Died("the engine's process cannot be started: Cannot allocate memory.", started=False)]

    run(scenario())
