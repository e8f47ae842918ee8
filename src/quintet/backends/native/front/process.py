"""The link to a worker in a process of its own: one ``Connection`` per life of the worker. Nothing here waits for the other process.

The weights are loaded there while the tokenizer is loaded here, once for all lives. A worker hears first what to load and, as soon as
the tokenizer is there, the vocabulary; so it cannot be ready before that. What a dead worker was told is lost: whoever told it hears of the
death (``Died``, once per ``start``) and decides what to tell the next one, which is for the supervisor and the requests in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from quintet import logs
from quintet.backends.native.front.connection import Connection
from quintet.backends.native.front.link import Link
from quintet.backends.native.front.spawn import MODULE, VLLM_MODULE, Ahead, Child, spawn
from quintet.backends.native.wire import codec
from quintet.backends.native.wire.messages import Died, FromWorker, Load, LoadVllm, ToWorker, Vocabulary
from quintet.backends.native.wire.sources import ModelSource, VllmSource
from quintet.backends.native.worker.memory import trim
from quintet.config import EngineConfig
from quintet.inputs.tokenizer import Tokenizer
from quintet.models.pieces import Pieces

_log = logging.getLogger(__name__)


class _Begun(NamedTuple):
    """What loads before there is an event loop.

    Args:
        child: ``None`` = none could be started.
    """

    child: Child | None
    tokenizer: Future[Tokenizer]


class ProcessLink(Link):
    """A worker in a child process; the tokenizer is loaded here, in a thread, while the child loads the weights.

    Args:
        source: what the child loads.
        tokenizer: loads the tokenizer; called once.
        module: what Python runs in the child; ``None`` = what loads such a source.
    """

    restarts = True

    def __init__(
        self,
        source: ModelSource | VllmSource,
        tokenizer: Callable[[], Tokenizer],
        config: EngineConfig,
        module: Sequence[str] | None = None,
    ) -> None:
        self._source, self._load_tokenizer, self._config = source, tokenizer, config
        self._module = tuple(module or (VLLM_MODULE if isinstance(source, VllmSource) else MODULE))
        self._receive: Callable[[FromWorker], None] = lambda _: None
        self._loading: asyncio.Future[Tokenizer] | None = None
        self._begun: _Begun | None = None
        self._child: Connection | None = None
        self._ended: list[Connection] = []  # killed, but perhaps not gone yet
        self._closed = False

    def begin(self, ahead: Ahead) -> None:
        """Have the first child, and the tokenizer, load already: before ``start``, and before there is an event loop."""
        thread = ThreadPoolExecutor(1, "quintet-tokenizer")
        tokenizer = thread.submit(self._load_tokenizer)
        thread.shutdown(wait=False)
        child = None
        with contextlib.suppress(OSError):  # ``start`` tries again
            child = ahead.take(self._module)
            try:
                child.sock.sendall(codec.encode(self._load()))  # less than any socket holds
            except OSError:
                child.drop()
                child = None
        self._begun = _Begun(child, tokenizer)

    @property
    def pid(self) -> int | None:
        """Of the child, while there is one."""
        return self._child.process.pid if self._child else None

    def start(self, receive: Callable[[FromWorker], None]) -> None:
        self._receive = receive
        loop = asyncio.get_running_loop()
        begun, self._begun = self._begun, None
        child = begun.child if begun else None
        try:
            level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
            self._child = connection = Connection(child or spawn(self._module, level, logs.form_in_use()), self._take, self._lost)
        except (OSError, MemoryError) as error:  # no process, no memory, no descriptor to be had now
            why = getattr(error, "strerror", None) or "out of memory"
            loop.call_soon(receive, Died(f"the engine's process cannot be started: {why}.", started=False))
            return
        if child is None:  # else ``begin`` has told it
            connection.send(self._load())
        if self.tokenizer is not None:
            self._tell_vocabulary(connection)
        else:
            self._begin_tokenizer(begun.tokenizer if begun else None)

    def send(self, message: ToWorker) -> None:
        if self._child is not None:
            self._child.send(message)

    def kill(self) -> None:
        if self._child is not None:
            self._lost(Died("the engine was killed."))

    async def close(self) -> None:
        self._closed = True
        self._receive = lambda _: None
        self.kill()
        for child in self._ended:
            await child.wait()
        if self._loading is not None:
            await asyncio.wait((self._loading,))

    def _begin_tokenizer(self, begun: Future[Tokenizer] | None = None) -> None:
        """Have it loaded, once for all lives."""
        if self._loading is None:
            loop = asyncio.get_running_loop()
            self._loading = asyncio.wrap_future(begun) if begun else loop.run_in_executor(None, self._load_tokenizer)
            self._loading.add_done_callback(self._tokenized)

    def _load(self) -> Load | LoadVllm:
        if isinstance(self._source, VllmSource):
            return LoadVllm(self._source, self._config)
        return Load(self._source, self._config)

    def _tokenized(self, loading: asyncio.Future[Tokenizer]) -> None:
        error = loading.exception()
        if self._closed:
            return
        if error is not None:
            _log.debug("the tokenizer cannot be loaded", exc_info=error)
            self._lost(Died.of(error) if isinstance(error, Exception) else None)
            return
        self.tokenizer = loading.result()
        if self._child is not None:
            self._tell_vocabulary(self._child)
        trim()  # while the child loads on

    def _tell_vocabulary(self, child: Connection) -> None:
        assert self.tokenizer is not None
        pieces = Pieces.of(self.tokenizer.pieces)
        child.send(Vocabulary(pieces.blob, pieces.ends.tobytes(), frozenset(self.tokenizer.eos_ids)))

    def _take(self, message: FromWorker) -> None:
        if isinstance(message, Died):
            self._lost(message)
            return
        self._receive(message)

    def _lost(self, why: Died | None = None) -> None:
        """The child is gone, or has to go; ``None``: nobody knows why, but perhaps its exit code."""
        child, self._child = self._child, None
        if child is None:
            return
        how = child.end(gone=why is None)
        self._ended = [ended for ended in self._ended if not ended.ended] + [child]
        self._receive(why or Died(f"the engine ended{how}."))
