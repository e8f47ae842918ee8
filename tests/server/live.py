"""A real uvicorn on a loopback port, in a thread of this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from quintet.cli.protocol import Protocol
from quintet.server.asgi import ASGIApp, Receive, Scope, Send


@contextmanager
def serving(make: Callable[[], ASGIApp]) -> Iterator[int]:
    """Serve until the block ends; gives the port. ``make`` is called on the server's event loop, where an engine wants to be made."""
    made: list[ASGIApp] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if not made:
            made.append(make())
        await made[0](scope, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, http=Protocol, log_level="critical", server_header=False, timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
