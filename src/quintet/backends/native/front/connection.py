"""A child process and the front's end of the socket to it, on an asyncio transport. Nothing here waits for the other process.

::

    send --> encode --> transport, its buffer --> socket --> child
    take <-- decode <-- Splitter <-- data_received <-- socket <-- child

What is promised: messages arrive whole and in order, or the child is given up. Everything that a child wrote before it died is taken before
its death is told, which is told once; nothing is taken afterwards. The last that it wrote is what matters most: why the model cannot be
loaded, or which requests the step computed that killed it (docs/decisions/0005-two-processes.md). But a transport that fails to write drops
what it has not read yet. So there is a second descriptor of the same socket, from which the rest is read in that case.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable
from typing import Protocol

from quintet.backends.native.wire import codec
from quintet.backends.native.wire.messages import Died, FromWorker, Message

MAX_BACKLOG = 4 * codec.MAX_FRAME
"""Bytes that a child may leave unread; one that reads so little hangs. One that just came up is told at once of everything that waits."""

_READ = 1 << 18
_REAP_S = 0.005
_LOOKS, _LOOK_S = 40, 0.0005
"""How often to look for the exit code of a dying process, and seconds between: the kernel closes its sockets before it tells that."""

_log = logging.getLogger(__name__)


class Process(Protocol):
    """What is asked of a child's process, be it on this machine or not; as of ``subprocess.Popen``."""

    @property
    def pid(self) -> int | None:
        """``None`` = it is not of this machine."""
        ...

    @property
    def returncode(self) -> int | None:
        """``None`` = it runs, as far as is known."""
        ...

    def poll(self) -> int | None:
        """``returncode``, after a look."""
        ...


class Peer(Protocol):
    """A child; see ``Child``."""

    @property
    def process(self) -> Process:
        """See ``Child``."""
        ...

    @property
    def sock(self) -> socket.socket:
        """See ``Child``."""
        ...

    def drop(self) -> None:
        """See ``Child``."""
        ...

    def kill(self) -> None:
        """See ``Child``."""
        ...


class Connection(asyncio.Protocol):
    """Made on the event loop that will use it.

    Args:
        child: ended here, also if this raises.
        take: gets each message.
        lost: called once, when the child is gone (``None``) or has to go; answered with ``end``.

    Raises:
        OSError: no descriptor to be had now.
    """

    def __init__(self, child: Peer, take: Callable[[FromWorker], None], lost: Callable[[Died | None], None]) -> None:
        self._loop, self._take, self._lost = asyncio.get_running_loop(), take, lost
        self._splitter = codec.Splitter()
        self._transport: asyncio.Transport | None = None
        self._early: list[bytearray] = []  # until there is a transport
        self._open = True  # until ``end``
        self._let_go = False
        self._child, self.process = child, child.process
        try:
            self._rest = child.sock.dup()
        except OSError:
            child.drop()
            raise
        child.sock.setblocking(False)
        self._connecting = self._loop.create_task(self._connect(child.sock))

    @property
    def ended(self) -> bool:
        """The killed process is reaped, and the socket closed."""
        return self._let_go and self.process.poll() is not None

    def send(self, message: Message) -> None:
        """Queue a message; written as far as the socket takes it.

        Raises:
            OverflowError, ValueError: see ``encode``.
        """
        frame = codec.encode(message)
        if self._transport is None:
            self._early.append(frame)
        else:
            self._transport.write(frame)

    def end(self, *, gone: bool) -> str:
        """Kill the process, if it is not dead already, and let go of the socket; how it died, as far as that is known by now.

        Args:
            gone: it seems to have died; how, is waited for, since it is all that tells the system's lack of memory from a crash.
        """
        self._open = False
        if self._transport is not None:
            self._transport.abort()
        code = self.process.poll()
        for _ in range(_LOOKS if gone and self.process.pid is not None else 0):
            if code is not None:
                break
            time.sleep(_LOOK_S)
            code = self.process.poll()
        self._child.kill()
        self._reap()
        if code is None:
            return ""
        return f" with exit code {code}" if code >= 0 else f" by {signal.Signals(-code).name}"

    async def wait(self) -> None:
        """Until it has ``ended``, after ``end``."""
        while not self.ended:
            await asyncio.sleep(_REAP_S)

    # ---- called by the transport

    def data_received(self, data: bytes) -> None:
        """Take the messages that this completes."""
        try:
            for frame in self._splitter.feed(data):
                self._take(codec.decode_from_worker(frame))
                if not self._open:
                    return
        except Exception:  # not a frame, or one that nobody could have meant: what else it says cannot be believed
            _log.exception("the engine's process sent nonsense")
            self._fail(Died("the engine sent nonsense."))

    def eof_received(self) -> bool:
        """The child is gone; nothing that could still be written matters. ``end`` closes the transport, which is not to do it by itself."""
        self._fail(None)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """So it is, if nobody has ended it; with ``exc`` some of what it wrote may be unread."""
        if exc is not None:
            self._read_rest()
        self._fail(None)
        self._rest.close()
        self._let_go = True

    def pause_writing(self) -> None:
        """The child leaves too much unread. Whoever is sending just now is not to find it gone under its hands."""
        self._loop.call_soon(self._fail, Died("the engine reads nothing."))

    async def _connect(self, sock: socket.socket) -> None:
        try:
            connect = self._loop.create_unix_connection if sock.family is socket.AF_UNIX else self._loop.create_connection
            transport, _ = await connect(lambda: self, sock=sock)
        except OSError as error:
            sock.close()
            self.connection_lost(error)
            return
        if self._let_go:  # lost meanwhile: uvloop has closed the descriptor, and the object must not close its number again
            sock.detach()
            return
        self._transport = transport  # not before, so that nobody aborts it before uvloop has taken the object over
        if not self._open:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=MAX_BACKLOG)
        for frame in self._early:
            transport.write(frame)
        self._early.clear()

    def _read_rest(self) -> None:
        with contextlib.suppress(OSError):  # at the latest there is nothing more: it does not block
            while self._open and (data := self._rest.recv(_READ)):
                self.data_received(data)

    def _fail(self, why: Died | None) -> None:
        if self._open:
            self._lost(why)

    def _reap(self) -> None:
        if self.process.poll() is None:
            self._loop.call_later(_REAP_S, self._reap)
        else:
            _log.debug("the engine's process %s ended with code %s", self.process.pid, self.process.returncode)
