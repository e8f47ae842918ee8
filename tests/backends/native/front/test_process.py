"""The link to a process: what is taken of a child that dies, reads nothing or talks nonsense. On both event loops that it runs on."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest
import uvloop

from quintet.backends.native.front import connection
from quintet.backends.native.front.connection import Process
from quintet.backends.native.front.process import ProcessLink
from quintet.backends.native.front.spawn import Ahead
from quintet.backends.native.wire import codec
from quintet.backends.native.wire.messages import Died, FromWorker, Progress, Ready, Started, Submit
from quintet.backends.native.wire.sources import ModelSource
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
    gc.collect()  # or else what other tests left is freed meanwhile
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield lambda scenario: go(asyncio.wait_for(scenario, 60))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


class Link:
    """To a child that does as it is written, and what came from it."""

    def __init__(self, child: str) -> None:
        self.heard: list[FromWorker] = []
        self.died = asyncio.Event()
        self.link = ProcessLink(
            ModelSource(path="", threads=1, context=None, name="toy"), ToyTokenizer, EngineConfig(), ("-c", CHILD + child)
        )
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


class Dying:
    """A process whose exit code is told a little later than its last socket is closed, as the kernel may do."""

    def __init__(self, process: Process) -> None:
        self._process, self._looks = process, 0
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def poll(self) -> int | None:
        self._looks += 1
        return None if self._looks <= 2 else self._process.poll()


def test_how_a_child_died_is_told_though_the_end_of_its_socket_comes_before_its_exit_code(run: Run) -> None:
    async def scenario() -> None:
        async with Link("os.kill(os.getpid(), signal.SIGKILL)") as link:
            assert link.link._child is not None
            link.link._child.process = Dying(link.link._child.process)
            os.waitid(os.P_PID, link.link.pid or 0, os.WEXITED | os.WNOWAIT)  # the event loop has read nothing meanwhile
            await link.died.wait()
            assert link.heard == [Died("the engine ended by SIGKILL.")]

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
            os.waitid(os.P_PID, link.link.pid or 0, os.WEXITED | os.WNOWAIT)  # the event loop has read nothing meanwhile
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


def test_a_request_that_is_too_long_for_a_frame_is_refused_and_the_longest_is_no_backlog(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the child would end at it, or be given up, and the next one as well."""
    assert connection.MAX_BACKLOG > 2 * codec.MAX_FRAME
    monkeypatch.setattr(codec, "MAX_FRAME", 1 << 16)

    async def scenario() -> None:
        async with Link("""
data = sock.recv(1 << 20)
sock.sendall(encode(Progress(0.5)))
while b"Submit" not in data:
    data += sock.recv(1 << 20)
sock.sendall(encode(Progress(1.0)))
time.sleep(1000)
""") as link:
            with pytest.raises(OverflowError):
                link.link.send(submit(1 << 17))
            while Progress(0.5) not in link.heard:
                await asyncio.sleep(0.001)
            link.link.send(submit(1))
            while Progress(1.0) not in link.heard:
                await asyncio.sleep(0.001)
            assert link.heard == [Progress(0.5), Progress(1.0)]

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


def begun(ahead: Ahead) -> tuple[ProcessLink, list[FromWorker]]:
    link = ProcessLink(ModelSource(path="", threads=1, context=None, name="toy"), ToyTokenizer, EngineConfig())
    link.begin(ahead)
    return link, []


def test_a_process_that_began_before_there_was_a_loop_is_the_engines_first_and_only_its_first(run: Run) -> None:
    """It was told what to load by then; one that is started after its death is as fresh as any."""

    async def scenario() -> None:
        with Ahead("WARNING", first=True) as ahead:
            assert ahead._waits is not None
            waited = ahead._waits.process.pid
            link, heard = begun(ahead)
        for first in (True, False):
            heard.clear()
            link.start(heard.append)
            assert (link.pid == waited) is first
            while not any(isinstance(message, Ready) for message in heard):
                assert not any(isinstance(message, Died) for message in heard)
                await asyncio.sleep(0.01)
            link.kill()
        await link.close()

    run(scenario())


def test_a_process_that_died_before_there_was_a_loop_is_told_of_as_any(run: Run) -> None:
    async def scenario() -> None:
        with Ahead("WARNING", first=True) as ahead:
            assert ahead._waits is not None
            ahead._waits.process.kill()
            ahead._waits.process.wait()
            link, heard = begun(ahead)
        link.start(heard.append)
        while not heard:
            await asyncio.sleep(0.01)
        if isinstance(heard[0], Died):  # else it was dead before it could be told what to load, and this is another
            assert heard == [Died("the engine ended by SIGKILL.")]
        await link.close()

    run(scenario())


def test_where_no_process_can_be_started_ahead_the_engine_tries_and_tells(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(12, "Cannot allocate memory")

        monkeypatch.setattr(subprocess, "Popen", refuse)
        with Ahead("WARNING", first=True) as ahead:
            link, heard = begun(ahead)
        link.start(heard.append)
        while not heard:
            await asyncio.sleep(0.01)
        assert heard == [Died("the engine's process cannot be started: Cannot allocate memory.", started=False)]
        await link.close()

    run(scenario())


def test_a_process_that_nobody_asked_for_is_ended(run: Run) -> None:
    async def scenario() -> None:
        with Ahead("WARNING", first=True) as ahead:
            assert ahead._waits is not None
            process = ahead._waits.process
        assert process.returncode == -9

    run(scenario())
    with Ahead("WARNING", first=False) as ahead:
        assert ahead._waits is None
