"""Requests of one connection know nothing of each other."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar

import pytest
from tests.listen.test_protocol import connected, early, turns
from tests.server.test_connections import GET, Wire

from quintet.server.asgi import Receive, Scope, Send


def test_nothing_that_a_request_set_in_its_context_is_there_when_the_next_one_begins(caplog: pytest.LogCaptureFixture) -> None:
    """Else a line that is logged before the next one has an id, or of what is malformed, has the id of the request before it."""
    mark: ContextVar[str] = ContextVar("mark", default="")
    found: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(mark.get())
        mark.set(scope["path"])
        await early(scope, receive, send)

    class Listens(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(mark.get())

    async def go() -> None:
        wire = Wire()
        one = connected(app, wire)
        caplog.set_level(logging.WARNING, "uvicorn.error")  # other servers of this process may have set another
        logger, listens = logging.getLogger("uvicorn.error"), Listens()
        logger.addHandler(listens)
        one.data_received(GET + GET + b"no request\r\n\r\n")
        await turns()
        logger.removeHandler(listens)
        one.connection_lost(None)
        assert wire.got.count(b"HTTP/1.1 200") == 2 and found == ["", "", ""]

    asyncio.run(go())
