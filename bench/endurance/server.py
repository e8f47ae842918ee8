"""A server that is loaded for long: started, looked at from outside as the system and its own metrics see it, and hurt."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

from bench.common.proc import PeerError, child, last_words
from quintet.load.client import Target

READY_S = 120.0
MIB = 1 << 20
_ENGINE = b"native.worker.child"


@dataclass(frozen=True, slots=True)
class Figures:
    """What a server holds at a moment.

    Args:
        at: seconds of ``time.perf_counter``.
        front, engine: resident bytes; 0 while there is no engine.
        descriptors, threads: of the front.
        busy: requests that run or wait, plus the share of the KV cache's pages that somebody holds.
    """

    at: float
    front: int
    engine: int
    descriptors: int
    threads: int
    busy: float


class Server:
    """A running ``quintet serve``.

    Args:
        process: its front.
    """

    def __init__(self, base: str, process: int) -> None:
        self.base, self.process = base, process
        name = json.loads(_get(f"{base}/v1/models")[1])["data"][0]["id"]
        self.target = Target(f"{base}/v1/completions", name, timeout=3600)

    def engine(self) -> int | None:
        """The engine's process, if there is one now."""
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if _parent(path) == self.process and _ENGINE in (path / "cmdline").read_bytes():
                    return int(path.name)
        return None

    async def hurt(self, number: int) -> float:
        """Send the engine a signal; seconds until another takes work. Raises ``PeerError`` if none does."""
        if (engine := self.engine()) is not None:
            with suppress(ProcessLookupError):
                os.kill(engine, number)
        return await self._until(lambda: self.engine() not in (None, engine) and _get(f"{self.base}/health")[0] == 200)

    async def look(self) -> Figures:
        """The figures of now."""
        front, engine = Path(f"/proc/{self.process}"), self.engine()
        busy = await asyncio.to_thread(self._busy)
        size = _status(Path(f"/proc/{engine}"), "VmRSS") * 1024 if engine else 0
        descriptors = len(list((front / "fd").iterdir()))
        return Figures(time.perf_counter(), _status(front, "VmRSS") * 1024, size, descriptors, _status(front, "Threads"), busy)

    def _busy(self) -> float:
        status, body = _get(f"{self.base}/metrics")
        if status != 200:
            return math.inf  # one that does not answer is not idle
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        return sum(float(found[1]) for name in names for found in re.finditer(rf"^{name}{{.*}} (\S+)$", body.decode(), re.MULTILINE))

    async def idle(self) -> float:
        """Seconds until nothing runs, waits or holds a page."""
        return await self._until(lambda: self._busy() == 0)

    async def _until(self, done: Callable[[], bool]) -> float:
        begin = time.perf_counter()
        while not await asyncio.to_thread(done):
            if time.perf_counter() - begin > READY_S:
                raise PeerError(f"the server did not come to rest in {READY_S:g} s")
            await asyncio.sleep(0.05)
        return time.perf_counter() - begin


def _parent(path: Path) -> int:
    return int((path / "stat").read_text().rpartition(")")[2].split()[1])


def _status(path: Path, name: str) -> int:
    with suppress(OSError):
        found = re.search(rf"^{name}:\s+(\d+)", (path / "status").read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0


def _get(url: str) -> tuple[int, bytes]:
    try:
        with urlopen(url, timeout=30) as answer:
            return answer.status, answer.read()
    except (OSError, HTTPException) as error:  # it is not there, does not answer in time, or breaks off
        return getattr(error, "code", 0), b""


@contextmanager
def serving(model: str, *options: str, kv_cache: str) -> Iterator[Server]:
    """A server of a model, or of ``toy``, which has no weights and a cache of its own; it is ended on exit.

    Args:
        options: more of its command line.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with TemporaryDirectory() as folder:
        log, what = Path(folder) / "server.log", ["--toy"] if model == "toy" else [model, "--kv-cache", kv_cache]
        command = [sys.executable, "-m", "quintet", "serve", "--port", str(port), "--log-level", "error", *what, *options]
        with child(command, log, read=False) as process:
            base, deadline = f"http://127.0.0.1:{port}", time.monotonic() + READY_S
            while _get(f"{base}/health")[0] != 200:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise PeerError(f"the server is not ready: {last_words(log)}")
                time.sleep(0.05)
            yield Server(base, process.pid)


@contextmanager
def stoppable(stop: asyncio.Event) -> Iterator[None]:
    """Ctrl-C ends what goes on, and what was seen until then is reported."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
