"""The event loop's side: starts a program of ``child``, and has it do pieces of work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Callable

from quintet import children
from quintet.errors import EngineFailed, Overloaded
from quintet.forks.child import READY, STARTED

START_S = 60.0
"""For the program to load what it needs: half a second, and many times that on a busy machine. No work is charged for it."""

_READ = 1 << 20
_log = logging.getLogger(__name__)


class Forks:
    """Starts the program when there is work and it is not there.

    Args:
        module: the program's.
        wall_s: see ``Bounds``.
        what: the work, for errors: "Schemas and grammars cannot be checked."
    """

    def __init__(self, module: str, wall_s: float, what: str) -> None:
        self.command: tuple[str, ...] = ("-P", "-m", module)
        """What the interpreter is started with."""
        self.wall_s = wall_s
        self._give_up_s = 2 * wall_s  # for a process that is stopped
        self._what = what
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._stop_watching: Callable[[], object] = lambda: None  # for the program's end
        self._starting = asyncio.Lock()

    async def start(self) -> socket.socket:
        """The socket of a program that is ready.

        Raises:
            EngineFailed: there is none to be had.
        """
        async with self._starting:
            if self._control is None:
                try:
                    self._control = self._launch()
                except OSError as error:
                    _log.error("%s There is no process to be had: %s", self._what, error.strerror)
                    raise EngineFailed(self._what) from None
                try:
                    ready = await asyncio.wait_for(_receive(self._control), START_S)
                except TimeoutError:
                    ready = b""
                if ready != READY:
                    self.close()
                    raise EngineFailed(self._what)
                loop, control = asyncio.get_running_loop(), self._control
                loop.add_reader(control, self._on_end, control)
                self._stop_watching = lambda: loop.is_closed() or loop.remove_reader(control)
            return self._control

    async def ask(self, *request: bytes, whole: Callable[[bytes], bool] = bool) -> bytes:
        """The answer of a process of its own to a piece of work; as far as it came, if the process died of it.

        Whoever is cancelled has the process ended, before another piece is begun.

        Args:
            request: the piece, in parts.
            whole: an answer is complete.

        Raises:
            Overloaded: it got too little time.
            EngineFailed: there is no such process to be had.
        """
        for _ in range(2):  # the program may just have ended, having been idle
            control = await self.start()
            begin = asyncio.get_running_loop().time()
            try:
                reply = await asyncio.wait_for(_exchange(control, request), self._give_up_s)
            except (OSError, TimeoutError):
                reply = b""
            if reply:
                answer = reply.removeprefix(STARTED)
                if not whole(answer) and asyncio.get_running_loop().time() - begin >= self.wall_s:
                    raise Overloaded(f"The machine is too busy: {self._what[0].lower()}{self._what[1:-1]} now; try again later.")
                return answer
            if control is self._control:  # another that found the program dead may have started one since
                self.close()
        raise EngineFailed(self._what)

    def _launch(self) -> socket.socket:
        """Start the program; the socket over which it says that it is ready."""
        control, theirs = socket.socketpair()
        control.setblocking(False)
        environment = children.environment(**children.WITHOUT_BLAS)
        with contextlib.ExitStack() as undo, theirs:
            undo.enter_context(control)
            self._process = subprocess.Popen(
                (sys.executable, *self.command), stdin=theirs.fileno(), stderr=subprocess.DEVNULL, env=environment
            )
            undo.pop_all()
        return control

    def _on_end(self, control: socket.socket) -> None:
        """The program has ended: it says nothing once it is ready. Nobody else would wait for its process before there is work again."""
        if control is self._control:
            self.close()

    def close(self) -> None:
        """End what was started; work that is being done is forgotten."""
        self._stop_watching()
        self._stop_watching = lambda: None
        if self._process is not None:  # first, since it would end all work where it sees its socket closed
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._control is not None:
            self._control.close()
            self._control = None


async def _exchange(control: socket.socket, request: tuple[bytes, ...]) -> bytes:
    """All that a new process of the program answers; nothing if there was none."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as leaving:
        ours, theirs = map(leaving.enter_context, socket.socketpair())
        _, wanted = map(leaving.enter_context, socket.socketpair())  # open as long as somebody is here
        ours.setblocking(False)
        socket.send_fds(control, [b"."], [theirs.fileno(), wanted.fileno()])
        theirs.close()
        wanted.close()
        for part in request:
            await loop.sock_sendall(ours, part)
        ours.shutdown(socket.SHUT_WR)
        reply = bytearray()
        while part := await _receive(ours):
            reply += part
        return bytes(reply)


async def _receive(connection: socket.socket) -> bytes:
    """The next part; nothing at the end, also where the other side ended without having read all."""
    try:
        return await asyncio.get_running_loop().sock_recv(connection, _READ)
    except ConnectionResetError:
        return b""
