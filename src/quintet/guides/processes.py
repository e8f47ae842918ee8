"""The client of ``process``, where guides are tried. Of the event loop."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

from quintet import children
from quintet.errors import EngineFailed, Overloaded
from quintet.guides.protocol import READY, STARTED, WALL_S

START_S = 60.0
"""For the process to load what it needs: half a second, and many times that on a busy machine. No guide is charged for it."""

_MODULE = ("-P", "-m", "quintet.guides.process")
_GIVE_UP_S = 2 * WALL_S  # for a process that is stopped
_READ = 1 << 16


class Processes:
    """Starts the process when there is something to check and it is not there."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> socket.socket:
        """The socket of a process that is ready.

        Raises:
            EngineFailed: there is none to be had.
        """
        async with self._starting:
            if self._control is None:
                self._control = self._started()
                try:
                    ready = await asyncio.wait_for(_received(self._control), START_S)
                except TimeoutError:
                    ready = b""
                if ready != READY:
                    self.close()
                    raise EngineFailed("Schemas and grammars cannot be checked.")
            return self._control

    async def ask(self, request: bytes) -> bytes:
        """What a process of its own makes of a request; nothing if it died of it.

        Raises:
            Overloaded: it got too little time.
            EngineFailed: there is no such process to be had.
        """
        for _ in range(2):  # it may just have ended, having been idle
            control = await self.start()
            begin = asyncio.get_running_loop().time()
            try:
                reply = await asyncio.wait_for(_asked(control, request), _GIVE_UP_S)
            except (OSError, TimeoutError):
                reply = b""
            if reply == STARTED and asyncio.get_running_loop().time() - begin >= WALL_S:
                raise Overloaded("The machine is too busy to check this schema or grammar; try again later.")
            if reply:
                return reply.removeprefix(STARTED)
            if control is self._control:  # another that found it dead may have started one since
                self.close()
        raise EngineFailed("Schemas and grammars cannot be checked.")

    def _started(self) -> socket.socket:
        control, theirs = socket.socketpair()
        control.setblocking(False)
        environment = children.environment(OPENBLAS_NUM_THREADS="1")  # numpy's threads would not survive a fork
        with theirs:
            self._process = subprocess.Popen((sys.executable, *_MODULE), stdin=theirs.fileno(), stderr=subprocess.DEVNULL, env=environment)
        return control

    def close(self) -> None:
        """End what was started; a guide that is being tried is forgotten."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


async def _asked(control: socket.socket, request: bytes) -> bytes:
    loop, (ours, theirs) = asyncio.get_running_loop(), socket.socketpair()
    with ours:
        ours.setblocking(False)
        with theirs:
            socket.send_fds(control, [b"."], [theirs.fileno()])
        await loop.sock_sendall(ours, request)
        ours.shutdown(socket.SHUT_WR)
        reply = b""
        while part := await _received(ours):
            reply += part
        return reply


async def _received(connection: socket.socket) -> bytes:
    """The next part; nothing at the end, also where the other side ended without having read all."""
    try:
        return await asyncio.get_running_loop().sock_recv(connection, _READ)
    except ConnectionResetError:
        return b""
