"""Replicas of the toy without Ray: hosts in this process, workers over TCP in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence

from tests.support.preparing import prepare
from tests.support.processes import engines

from quintet.backends.base import Backend, State
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.restarts import Records
from quintet.backends.native.front.spawn import MODULE
from quintet.backends.native.front.watchdog import STALL_S
from quintet.backends.native.wire.sources import ModelSource
from quintet.backends.toy import ToyTokenizer
from quintet.config import EngineConfig
from quintet.deploy.host import SECRET_BYTES, Host
from quintet.deploy.pool import Pool
from quintet.deploy.remote import Place, RemoteLink
from quintet.deploy.scaling import Sizing
from quintet.events import TokenEvent
from quintet.inputs.sequence import SequenceSpec
from quintet.request import Sampling

ADDRESS = "127.0.0.1"
SECRET = b"s" * SECRET_BYTES
CONFIG = EngineConfig(kv_bytes=4 << 20, batch_tokens=64, max_running=8, max_waiting=200, max_sequences=64)


def spec(prompt: str = "hello", max_tokens: int = 5, seed: int = 0) -> SequenceSpec:
    return SequenceSpec(prompt, max_tokens, Sampling(1.0, 1.0, seed, ignore_eos=True), None, echo=False)


class Hosts:
    """One for each replica that is made."""

    def __init__(self, secret: bytes = SECRET, name: str = "toy", module: Sequence[str] = MODULE, stall_s: float = STALL_S) -> None:
        self.hosts: list[Host] = []
        self.released: list[int] = []
        self.secret, self.name, self.module, self.stall_s = secret, name, module, stall_s
        self.lost = False  # no replica can be found any more

    def listen(self) -> Host:
        """One more."""
        self.hosts.append(Host(ADDRESS, SECRET, self.module, "WARNING", "text"))
        return self.hosts[-1]

    def make(self, records: Records | None = None) -> Engine:
        """An engine over a host of its own."""
        host, number = self.listen(), len(self.hosts) - 1

        async def find() -> Place:
            if self.lost:
                raise ConnectionError("the machine is gone")
            return Place(ADDRESS, host.port, "")

        source = ModelSource(path="/elsewhere", threads=1, context=None, name=self.name)
        link = RemoteLink(source, ToyTokenizer, CONFIG, find, self.secret, lambda: self.released.append(number))
        return Engine(link, CONFIG, records=records, stall_s=self.stall_s)


async def until(what: Callable[[], bool]) -> None:
    while not what():
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def ready(backend: Backend) -> AsyncIterator[Backend]:
    """Once it can work; closed in the end."""
    try:
        await until(lambda: backend.health().state is not State.LOADING)
        assert backend.health().state is State.READY
        yield backend
    finally:
        await backend.close()


@contextlib.asynccontextmanager
async def pool(hosts: Hosts, sizing: Sizing) -> AsyncIterator[Pool]:
    """All of whose least replicas are ready."""
    made = Pool(hosts.make, CONFIG, sizing)
    async with ready(made):
        await until(lambda: all(one.state is State.READY for one in made.replicas))
        yield made


async def collect(backend: Backend, one: SequenceSpec) -> list[TokenEvent]:
    """A request's events."""
    return [event async for batch in backend.submit(await prepare(backend, [one])) for event in batch]


def workers() -> list[int]:
    """Processes of workers."""
    return engines(os.getpid())


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
