"""Connections are taken off a listening socket one by one, and never more than there is room for.

Left to the event loop's own server, one descriptor too few would mean that connections are taken and closed at once, or that the loop
spins. Here whoever finds no room waits in the socket's backlog, and it is looked again a little later.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from quintet.listen.protocol import Protocol
from quintet.listen.reads import READ_BYTES, Reads
from quintet.listen.sockets import Listener
from quintet.listen.tls import Tls

_log = logging.getLogger(__name__)

PAUSE_S = 0.05
"""How long nobody is taken when there is no room; time enough for some to leave."""

HANDSHAKE_S = 5.0
_AT_ONCE = 64  # then others have their turn on the event loop
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """One listening socket's. Made and used on the event loop.

    Args:
        tls: ``None`` = plain.
        room: whether another connection may be taken; asked before each.
        taken: one was taken; what shall speak on it.
    """

    def __init__(self, listener: Listener, tls: Tls | None, room: Callable[[], bool], taken: Callable[[], Protocol]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock, self._tls, self._room, self._taken = listener.sock, tls, room, taken
        self._descriptor = listener.sock.fileno()
        self._buffer = bytearray(READ_BYTES)
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._told = False  # that no connection can be taken; again after the next that was
        self._stopped = False
        self._sock.setblocking(False)
        self._listen()

    def stop(self) -> None:
        """Take no more. Those that wait in the backlog are left to another process that has the socket, if there is one. Idempotent."""
        if self._stopped:  # after a hand-over the descriptor may be another's
            return
        self._stopped = True
        self._loop.remove_reader(self._descriptor)
        if self._pause is not None:
            self._pause.cancel()

    def _take(self) -> None:
        """Somebody waits in the backlog."""
        for _ in range(_AT_ONCE):
            if not self._room():
                self._rest()
                return
            try:
                client, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR:
                    self._tell(error)
                    self._rest()
                    return
                continue  # the client left before its turn
            self._told = False
            protocol = self._taken()
            task = self._loop.create_task(self._open(client, protocol))
            protocol.give_up = task.cancel
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _rest(self) -> None:
        """Take nobody for ``PAUSE_S``."""
        self._loop.remove_reader(self._descriptor)
        self._pause = self._loop.call_later(PAUSE_S, self._listen)

    def _listen(self) -> None:
        self._loop.add_reader(self._descriptor, self._take)

    def _tell(self, error: OSError) -> None:
        """Log that no connection can be taken: once, until one can."""
        if not self._told:
            self._told = True
            _log.error("no connection can be taken: %s", error.strerror)

    async def _open(self, client: socket.socket, protocol: Protocol) -> None:
        try:
            client.setblocking(False)
            if client.family != socket.AF_UNIX:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            timeout = {} if self._tls is None else {"ssl_handshake_timeout": HANDSHAKE_S}
            context = None if self._tls is None else self._tls.context
            await self._loop.connect_accepted_socket(lambda: Reads(protocol, self._buffer), client, ssl=context, **timeout)
        except OSError as error:  # the client left, or does not speak TLS
            _log.debug("a connection did not come about: %s", error)
            client.close()
            protocol.connection_lost(error)
        except asyncio.CancelledError:  # its place is wanted
            client.close()
            protocol.connection_lost(None)
            raise
