"""Guides are checked in processes that may crash (``process``), before anything of the request starts. The event loop's side."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterable

from quintet.errors import BadRequest, EngineFailed, Overloaded
from quintet.guides.protocol import REFUSED, STARTED, TAKEN, TOO_COMPLEX, WALL_S, GuideError
from quintet.request import Guide, GuideKind

MAX_BYTES = 256 * 1024
"""Longest guide; the largest schemas that people use are a tenth of it."""

AT_ONCE = 2
MAX_WAITING = 128
"""Guides that wait for their turn; an ordinary one takes a hundredth of a second."""

WAIT_S = 5.0
"""And for no longer than this, which they do if many before them are hostile."""

CACHE_BYTES = 16 << 20
_MODULE = ("-P", "-m", "quintet.guides.process")
_GIVE_UP_S = 2 * WALL_S  # for a process that is stopped
_READ = 1 << 16
_MANY = "Too many schemas and grammars are being checked; try again later."

Key = tuple[GuideKind, str]


class GuideCheck:
    """Checks guides, each once however many ask for it, and remembers what came of it."""

    def __init__(self) -> None:
        self._known: OrderedDict[Key, str | GuideError] = OrderedDict()
        self._bytes = 0
        self._checks: dict[Key, asyncio.Task[str | GuideError]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._processes = _Processes()

    async def translate(self, guides: Iterable[Guide | None]) -> dict[Guide, str]:
        """Each distinct guide as ``matcher.Compiler`` takes it.

        Raises:
            BadRequest: one cannot be followed.
            Overloaded: too many others are being checked, or the machine is too busy.
        """
        return {guide: await self._one(guide) for guide in dict.fromkeys(guides) if guide is not None}

    async def close(self) -> None:
        """End the processes, and whoever waits for them."""
        for check in self._checks.values():
            check.cancel()
        await asyncio.gather(*self._checks.values(), return_exceptions=True)
        self._processes.close()

    async def _one(self, guide: Guide) -> str:
        key = guide.kind, guide.text
        if key in self._known:
            self._known.move_to_end(key)
            result = self._known[key]
        else:
            result = await asyncio.shield(self._checks.get(key) or self._start(key))
        if isinstance(result, GuideError):
            raise BadRequest(guide.param, str(result), code="grammar_too_complex" if str(result) == TOO_COMPLEX else "invalid_value")
        return result

    def _start(self, key: Key) -> asyncio.Task[str | GuideError]:
        if len(self._checks) >= AT_ONCE + MAX_WAITING:
            raise Overloaded(_MANY)
        task = self._checks[key] = asyncio.get_running_loop().create_task(self._check(*key))
        task.add_done_callback(lambda _: self._done(key))
        return task

    def _done(self, key: Key) -> None:
        task = self._checks.pop(key)
        if not task.cancelled() and task.exception() is None:
            self._keep(key, task.result())

    async def _check(self, kind: GuideKind, text: str) -> str | GuideError:
        encoded = text.encode("utf-8", "surrogatepass")
        if len(encoded) > MAX_BYTES:
            return GuideError(f"must be at most {MAX_BYTES} bytes")
        await self._turn()
        try:
            reply = (await self._processes.ask(kind.name.encode() + b"\n" + encoded)).decode()
        finally:
            self._slots.release()
        if reply.startswith(TAKEN):
            return reply.removeprefix(TAKEN)
        return GuideError(reply.removeprefix(REFUSED) or TOO_COMPLEX)

    async def _turn(self) -> None:
        try:
            await asyncio.wait_for(self._slots.acquire(), WAIT_S)
        except TimeoutError:
            raise Overloaded(_MANY) from None

    def _keep(self, key: Key, result: str | GuideError) -> None:
        self._known[key] = result
        self._bytes += _size(key, result)
        while len(self._known) > 1 and self._bytes > CACHE_BYTES:
            self._bytes -= _size(*self._known.popitem(last=False))


def _size(key: Key, result: str | GuideError) -> int:
    return 200 + len(key[1]) + len(str(result))


class _Processes:
    """The client of ``process``, which is started when there is something to check and it is not there."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    async def ask(self, request: bytes) -> bytes:
        """What a process of its own makes of a request; nothing if it died of it.

        Raises:
            Overloaded: it got too little time.
            EngineFailed: there is no such process to be had.
        """
        for _ in range(2):  # it may just have ended, having been idle
            begin = asyncio.get_running_loop().time()
            try:
                reply = await asyncio.wait_for(self._ask(request), _GIVE_UP_S)
            except (OSError, TimeoutError):
                reply = b""
            if reply == STARTED and asyncio.get_running_loop().time() - begin >= WALL_S:
                raise Overloaded("The machine is too busy to check this schema or grammar; try again later.")
            if reply:
                return reply.removeprefix(STARTED)
            self.close()
        raise EngineFailed("Schemas and grammars cannot be checked.")

    async def _ask(self, request: bytes) -> bytes:
        loop, (ours, theirs) = asyncio.get_running_loop(), socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                socket.send_fds(self._server(), [b"."], [theirs.fileno()])
            await loop.sock_sendall(ours, request)
            ours.shutdown(socket.SHUT_WR)
            reply = b""
            while part := await _received(ours):
                reply += part
            return reply

    def _server(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair()
            self._control.setblocking(False)
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # numpy's threads would not survive a fork
            with theirs:
                self._process = subprocess.Popen(
                    (sys.executable, *_MODULE), stdin=theirs.fileno(), stderr=subprocess.DEVNULL, env=environment
                )
        return self._control

    def close(self) -> None:
        """End what was started; a guide that is being tried is forgotten."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


async def _received(connection: socket.socket) -> bytes:
    """The next part; nothing at the end, also where the other side ended without having read all."""
    try:
        return await asyncio.get_running_loop().sock_recv(connection, _READ)
    except ConnectionResetError:
        return b""
