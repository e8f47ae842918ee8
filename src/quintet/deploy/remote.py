"""The link to a worker on another machine: what ``ProcessLink`` is, over a connection to a ``Host`` instead of a child of this process.

Each life of the worker is one connection: opening it starts a process there, closing it ends that process. Where the host is may change
from one life to the next, so it is asked for each time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from msgspec import structs

from quintet.backends.native.front.connection import Connection
from quintet.backends.native.front.process import ProcessLink
from quintet.backends.native.wire.messages import Died, FromWorker, Submit, ToWorker
from quintet.backends.native.wire.sources import ModelSource, VllmSource
from quintet.config import EngineConfig
from quintet.inputs.tokenizer import Tokenizer

CONNECT_S = 10.0
CLOCK = struct.Struct("<d")
"""What a host answers to the secret: seconds on the clock of its machine."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host listens.

    Args:
        model, draft: paths on that machine, of the model and of its draft model; an empty one = there is none.
    """

    address: str
    port: int
    model: str
    draft: str = ""


class RemoteProcess:
    """What stands for the process of a worker on another machine: all that is known of it is whether its connection was ended."""

    pid: int | None = None
    returncode: int | None = None

    def poll(self) -> int | None:
        """As of ``subprocess.Popen``."""
        return self.returncode


class RemoteChild:
    """A worker on another machine, which its host ends when the connection does.

    Args:
        sock: connected.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.process = RemoteProcess()
        self.sock = sock

    def drop(self) -> None:
        """See ``Child``."""
        self.sock.close()
        self.kill()

    def kill(self) -> None:
        """The connection is ended by its owner."""
        self.process.returncode = 0


class RemoteLink(ProcessLink):
    """
    Args:
        source: what the worker loads, but for the paths of models, which its host tells.
        tokenizer: loads it; shared by all links to the same model.
        find: waits for the host and tells where it is.
        secret: what the host wants to see.
        release: frees the host for good.
    """

    def __init__(
        self,
        source: ModelSource | VllmSource,
        tokenizer: Callable[[], Tokenizer],
        config: EngineConfig,
        find: Callable[[], Awaitable[Place]],
        secret: bytes,
        release: Callable[[], None],
    ) -> None:
        super().__init__(source, tokenizer, config)
        self._find, self._secret, self._release = find, secret, release
        self._connecting: asyncio.Task[None] | None = None
        self._ahead_s = 0.0  # how much the host's clock is before ours

    def start(self, receive: Callable[[FromWorker], None]) -> None:
        self._receive = receive
        self._begin_tokenizer()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def send(self, message: ToWorker) -> None:
        if isinstance(message, Submit):
            message = structs.replace(message, at=message.at + self._ahead_s)
        super().send(message)

    def kill(self) -> None:
        if self._connecting is not None:
            self._lost(Died("the replica was not reached in time.", started=False))
        super().kill()

    async def close(self) -> None:
        await super().close()
        self._release()

    async def _connect(self) -> None:
        try:
            place = await self._find()
            async with asyncio.timeout(CONNECT_S):
                sock, theirs = await _open(place, self._secret)
            child = Connection(RemoteChild(sock), self._take, self._lost)
        except Exception as error:  # whatever Ray has to say, or the system
            _log.debug("a replica cannot be reached", exc_info=error)
            self._connecting = None
            self._receive(Died(f"the replica cannot be reached: {error or type(error).__name__}.", started=False))
            return
        self._ahead_s = theirs - time.monotonic()
        self._source = _at(place, self._source)
        self._connecting = None
        self._child = child
        child.send(self._load())
        if self.tokenizer is not None:
            self._tell_vocabulary(child)

    def _lost(self, why: Died | None = None) -> None:
        if self._connecting is None:
            super()._lost(why)
        else:  # there is no child to be lost yet: the tokenizer cannot be loaded, or it took too long
            self._connecting.cancel()
            self._connecting = None
            self._receive(why or Died("the engine ended."))


def _at(place: Place, source: ModelSource | VllmSource) -> ModelSource | VllmSource:
    """What is loaded there. An encoder that is no part of the model's folder is at the same path, as a user's own files are."""
    if isinstance(source, VllmSource):
        return replace(source, path=place.model)
    vision = place.model if source.vision == source.path else source.vision
    return replace(source, path=place.model, vision=vision, draft=place.draft)


async def _open(place: Place, secret: bytes) -> tuple[socket.socket, float]:
    """A connection to a host that has taken the secret, and its clock.

    Raises:
        OSError, asyncio.IncompleteReadError: there is none.
    """
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await loop.sock_connect(sock, (place.address, place.port))
        await loop.sock_sendall(sock, secret)
        answer = b""
        while len(answer) < CLOCK.size:
            data = await loop.sock_recv(sock, CLOCK.size - len(answer))
            if not data:
                raise ConnectionResetError("the host refuses the secret")
            answer += data
    except BaseException:
        sock.close()
        raise
    return sock, CLOCK.unpack(answer)[0]
