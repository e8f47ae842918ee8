"""The link to a worker in a process of its own, over a socket pair. Nothing here waits for the other process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

from quintet.backends.native.front.link import Link
from quintet.backends.native.wire import codec
from quintet.backends.native.wire.messages import Died, FromWorker, Load, Message, ModelSource, Ready, ToWorker, Vocabulary
from quintet.backends.native.worker.memory import trim
from quintet.config import EngineConfig
from quintet.inputs.tokenizer import Tokenizer
from quintet.models.pieces import Pieces

MODULE = ("-P", "-m", "quintet.backends.native.worker.child")
"""What Python runs; ``-P``: nothing in the current folder can stand in for a module."""

MAX_BACKLOG = 1 << 28
"""Bytes that a worker may leave unread; one that reads so little hangs."""

_READ = 1 << 18
_REAP_S = 0.005
_log = logging.getLogger(__name__)


class ProcessLink(Link):
    """A worker in a child process; the tokenizer is loaded here, in a thread, while the child loads the weights.

    Args:
        source: what the child loads.
        tokenizer: loads the tokenizer; called once.
        module: what Python runs in the child.
    """

    restarts = True

    def __init__(
        self, source: ModelSource, tokenizer: Callable[[], Tokenizer], config: EngineConfig, module: Sequence[str] = MODULE
    ) -> None:
        self._source, self._load_tokenizer, self._config, self._module = source, tokenizer, config, tuple(module)
        self._receive: Callable[[FromWorker], None] = lambda _: None
        self._loading: asyncio.Future[Tokenizer] | None = None
        self._child: _Connection | None = None
        self._ended: list[_Connection] = []  # killed and not yet reaped
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Of the child, while there is one."""
        return self._child.process.pid if self._child else None

    def start(self, receive: Callable[[FromWorker], None]) -> None:
        self._receive = receive
        loop = asyncio.get_running_loop()
        try:
            self._child = child = _Connection(loop, self._module, self._take, self._lost)
        except OSError as error:  # no process, no memory, no descriptor to be had now
            loop.call_soon(receive, Died(f"the engine's process cannot be started: {error.strerror}."))
            return
        child.send(Load(self._source, self._config))
        if self.tokenizer is not None:
            self._tell_vocabulary(child)
        elif self._loading is None:
            self._loading = loop.run_in_executor(None, self._load_tokenizer)
            self._loading.add_done_callback(self._tokenized)

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
            await child.reaped()
        if self._loading is not None:
            await asyncio.wait((self._loading,))

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

    def _tell_vocabulary(self, child: _Connection) -> None:
        assert self.tokenizer is not None
        pieces = Pieces.of(self.tokenizer.pieces)
        child.send(Vocabulary(pieces.blob, pieces.lengths, frozenset(self.tokenizer.eos_ids)))

    def _take(self, message: FromWorker) -> None:
        if isinstance(message, Died):
            self._lost(message)
            return
        if isinstance(message, Ready):  # which it is only after it got the vocabulary
            trim()
        self._receive(message)

    def _lost(self, why: Died | None = None) -> None:
        """The child is gone, or has to go; ``None``: nobody knows why, but perhaps its exit code."""
        child, self._child = self._child, None
        if child is None:
            return
        how = child.end()
        self._ended = [each for each in self._ended if each.running] + [child]
        self._receive(why or Died(f"the engine ended{how}."))


class _Connection:
    """A child process and this end of the socket.

    Args:
        take: gets each frame.
        lost: called once, when the child is gone (``None``) or talks nonsense.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        module: Sequence[str],
        take: Callable[[FromWorker], None],
        lost: Callable[[Died | None], None],
    ) -> None:
        self._loop, self._take, self._lost = loop, take, lost
        self._splitter = codec.Splitter()
        self._backlog = bytearray()
        self._open = True
        self._sock, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = _spawn(module, theirs)
            except OSError:
                self._sock.close()
                raise
        self._sock.setblocking(False)
        loop.add_reader(self._sock, self._readable)

    @property
    def running(self) -> bool:
        """Not yet reaped."""
        return self.process.poll() is None

    def send(self, message: Message) -> None:
        """Queue a message; written as far as the socket takes it."""
        idle = not self._backlog
        self._backlog += codec.encode(message)
        if idle:
            self._write()
            if self._backlog and self._open:
                self._loop.add_writer(self._sock, self._writable)
        elif len(self._backlog) > MAX_BACKLOG:
            self._loop.call_soon(self._lost, Died("the engine reads nothing."))

    def end(self) -> str:
        """Kill the process, if it is not dead already, and let go of the socket; how it died, as far as that is known by now."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._sock.close()
        code = self.process.poll()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self._reap()
        return "" if code is None else f" with exit code {code}" if code >= 0 else f" by {signal.Signals(-code).name}"

    async def reaped(self) -> None:
        """Wait until the killed process is gone."""
        while self.running:
            await asyncio.sleep(_REAP_S)

    def _reap(self) -> None:
        if self.running:
            self._loop.call_later(_REAP_S, self._reap)
        else:
            _log.debug("the engine's process %d ended with code %s", self.process.pid, self.process.returncode)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost(None)
            return
        try:
            for frame in self._splitter.feed(data):
                self._take(codec.decode_from_worker(frame))
                if not self._open:
                    return
        except Exception:  # not a frame, or one that nobody could have meant: what else it says cannot be believed
            _log.exception("the engine's process sent nonsense")
            self._lost(Died("the engine sent nonsense."))

    def _writable(self) -> None:
        self._write()
        if not self._backlog and self._open:
            self._loop.remove_writer(self._sock)

    def _write(self) -> None:
        try:
            sent = self._sock.send(self._backlog)
        except BlockingIOError:
            return
        except OSError:  # the reader will see the end
            sent = len(self._backlog)
        del self._backlog[:sent]


def _spawn(module: Sequence[str], theirs: socket.socket) -> subprocess.Popen[bytes]:
    """A fresh interpreter, and no fork of this one: threads, locks and memory stay behind."""
    level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
    return subprocess.Popen(
        [sys.executable, *module, str(theirs.fileno()), str(os.getpid()), level],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
        process_group=0,  # Ctrl-C in a terminal is for the parent, which decides
    )
