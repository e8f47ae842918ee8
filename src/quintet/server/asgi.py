"""ASGI 3.0: the types of an application, and the body and headers of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


def arrived(body: bytes) -> Receive:
    """Receives a body that is here, of a client that never leaves. Nothing holds the body once it was received."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else await asyncio.get_running_loop().create_future()

    return receive


class Headers:
    """Headers by name.

    Args:
        raw: as ASGI gives them: names in lower case, in order, repeated ones too.
    """

    def __init__(self, raw: Sequence[tuple[bytes, bytes]]) -> None:
        self.raw = raw

    def getlist(self, name: str) -> list[str]:
        """All values of a header; ``name`` in lower case."""
        wanted = name.encode("latin-1")
        return [value.decode("latin-1") for key, value in self.raw if key == wanted]

    def get(self, name: str, default: str = "") -> str:
        """The first value of a header."""
        return next(iter(self.getlist(name)), default)

    def __contains__(self, name: str) -> bool:
        return bool(self.getlist(name))
