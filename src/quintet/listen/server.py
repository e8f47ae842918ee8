"""The HTTP server: listeners, their connections, and how they end.

uvicorn's part is the ASGI cycle of a connection, the clock of the ``date`` header, and the order of a shutdown; it is given no socket.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from functools import partial

import uvicorn

from quintet.listen.accept import Acceptor
from quintet.listen.crowd import Crowd
from quintet.listen.protocol import Protocol
from quintet.listen.sockets import PUBLIC, Listener
from quintet.listen.tls import Tls

_CUT_S = 1  # for answers that still do not end


class Server:
    """Serves ``app`` on ``listeners`` until it is told to end.

    Args:
        app: an ASGI application. ``scope["state"]`` tells it the ``listener`` that a connection came over, and whether it is ``crowded``;
            its ``lost`` is a future that is done when the connection is over, which ``receive`` tells only whoever takes the body.
        tls: for the public listeners; the others are plain.
        most: connections; see ``Crowd``.
    """

    def __init__(self, app: object, listeners: Sequence[Listener], most: int, tls: Tls | None = None) -> None:
        self._listeners, self._tls = listeners, tls
        self._crowd: Crowd[Protocol] = Crowd(most, time.monotonic)
        self._acceptors: list[Acceptor] = []
        settings = uvicorn.Config(
            app,  # type: ignore[arg-type]
            http=Protocol,
            ws="none",
            lifespan="auto",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_CUT_S,
        )
        self._inner = _Inner(settings)

    @property
    def answering(self) -> bool:
        """A request is being answered."""
        return bool(self._inner.server_state.tasks)

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._crowd)

    async def serve(self) -> None:
        """Answer whoever is connected, until ``end``, and until what was being answered is, or is cut off."""
        await self._inner.serve(sockets=[])

    def open(self) -> None:
        """Take connections; until then those who connect wait."""
        for listener in self._listeners:
            tls = self._tls if listener.name == PUBLIC else None
            self._acceptors.append(Acceptor(listener, tls, self._crowd.has_room, partial(self._connection, listener.name)))

    def end(self) -> None:
        """Take no more connections, and no more requests."""
        self._stop()
        self._inner.should_exit = True

    def leave(self) -> None:
        """Take no more connections; those that there are may send a request each, and are told that it was the last."""
        self._stop()
        for connection in self._crowd:
            connection.leave()

    def _connection(self, listener: str) -> Protocol:
        """What speaks on a connection that was taken off the listener of this name."""
        facts = {"listener": listener, "crowded": self._crowd.is_full()}
        connection = Protocol(self._inner.config, self._inner.server_state, facts, self._crowd)
        self._crowd.joined(connection)
        if facts["crowded"]:
            connection.hurry()
        return connection

    def _stop(self) -> None:
        for acceptor in self._acceptors:
            acceptor.stop()


class _Inner(uvicorn.Server):
    """uvicorn's server without sockets and signals: these would be raised again at the end, in the middle of the clean-up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
