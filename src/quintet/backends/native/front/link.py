"""How the engine's two sides reach each other, and the link to a worker in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from quintet.backends.native.core.loader import Loaded, Loader
from quintet.backends.native.wire.messages import FromWorker, Stop, ToWorker
from quintet.config import EngineConfig
from quintet.inputs.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quintet.backends.native.worker.worker import Heard

_JOIN_S = 10.0  # a step cannot be interrupted; one that takes longer is left to the end of the process


class Link(ABC):
    """A worker and the way to it. Used on one event loop, which none of its methods holds up."""

    restarts: bool
    """A worker that died can be started again, and one that hangs be killed."""

    tokenizer: Tokenizer | None = None
    """The model's, which never crosses; there before ``Ready`` is received."""

    @property
    def pid(self) -> int | None:
        """Of the worker's process; ``None`` = it has none of its own, or there is none now."""
        return None

    @abstractmethod
    def start(self, receive: Callable[[FromWorker], None]) -> None:
        """Bring a worker up; ``receive`` is called on the event loop, the last time with ``Died``."""

    @abstractmethod
    def send(self, message: ToWorker) -> None:
        """Tell the worker; what a dead one was told is lost."""

    @abstractmethod
    def kill(self) -> None:
        """End a worker that hangs; ``Died`` follows."""

    @abstractmethod
    async def close(self) -> None:
        """End the worker, and wait until it is gone. Nothing is received afterwards."""


class ThreadLink(Link):
    """A worker in a thread: for the toy, a single run, and tests. What breaks the process breaks everything.

    Args:
        clock: seconds, monotonic.
    """

    restarts = False

    def __init__(self, loader: Loader[Tokenizer], config: EngineConfig, clock: Callable[[], float]) -> None:
        self._loader, self._config, self._clock = loader, config, clock
        self._inbox: SimpleQueue[Heard] = SimpleQueue()
        self.thread: threading.Thread | None = None

    def start(self, receive: Callable[[FromWorker], None]) -> None:
        loop = asyncio.get_running_loop()

        def deliver(message: FromWorker) -> None:
            """One wake-up of the event loop per message."""
            try:
                loop.call_soon_threadsafe(receive, message)
            except RuntimeError:  # the loop was closed without ``close``: nobody is left to tell
                self._inbox.put(Stop())

        def load(progress: Callable[[float], None]) -> Loaded[Tokenizer]:
            loaded = self._loader(progress)
            self.tokenizer = loaded.tokenizer
            return loaded

        from quintet.backends.native.worker.worker import Worker  # a front whose worker is in another process does not carry it

        worker = Worker(load, self._config, self._clock, self._inbox, deliver)
        self.thread = threading.Thread(target=worker.run, name="quintet-engine", daemon=True)
        self.thread.start()

    def send(self, message: ToWorker) -> None:
        self._inbox.put(message)

    def kill(self) -> None:
        """A thread cannot be killed: it is told to stop after its step."""
        self._inbox.put(Stop())

    async def close(self) -> None:
        self._inbox.put(Stop())
        if self.thread is not None:
            await asyncio.to_thread(self.thread.join, _JOIN_S)
