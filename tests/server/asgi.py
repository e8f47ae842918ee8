"""Calls an ASGI application in this process, without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from quintet.server.asgi import ASGIApp, Message, Receive, Scope, Send
from quintet.server.source import Source

SOURCE = Source(now=lambda: 1_700_000_000.0, token=lambda: "0123456789abcdef", host=lambda: "host", seed=lambda: 7, clock=lambda: 0.0)
"""Fixed, so that whole responses can be compared."""

JSON = [("content-type", "application/json")]


@dataclass
class Answer:
    """What was sent back; ``parts`` are the body's messages, ``complete`` once the last one came."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


async def acall(
    app: ASGIApp,
    body: object = None,
    *,
    method: str = "POST",
    path: str = "/v1/completions",
    raw_path: bytes | None = None,
    query: str = "",
    headers: Iterable[tuple[str, str]] = JSON,
    leave_after: float | None = None,
    leave_at: int | None = None,
    gone: asyncio.Event | None = None,
    stuck_at: int | None = None,
    into: Answer | None = None,
) -> Answer:
    """One request. ``body`` is bytes, a list of bytes (pieces), or a value to send as JSON.

    The client leaves after ``leave_after`` seconds, when it has ``leave_at`` parts of the answer, when ``gone`` is set, or when the
    answer is complete. It reads nothing more when it has ``stuck_at`` parts. ``into`` is filled while that comes.
    """
    pieces = body if isinstance(body, list) else [body if isinstance(body, bytes) else json.dumps(body).encode()]
    messages = [{"type": "http.request", "body": piece, "more_body": at + 1 < len(pieces)} for at, piece in enumerate(pieces)]
    answer, gone = into or Answer(), gone or asyncio.Event()

    async def receive() -> Message:
        if messages:
            return messages.pop(0)
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
        else:
            answer.parts.append(message["body"])
            if len(answer.parts) == stuck_at:
                await gone.wait()
            if not message.get("more_body"):
                answer.complete = True
                gone.set()
            if len(answer.parts) == leave_at:
                gone.set()

    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    scope: dict[str, object] = {"type": "http", "method": method, "path": path, "headers": raw, "client": ("127.0.0.1", 12345)}
    scope |= {"raw_path": raw_path or path.encode(), "query_string": query.encode()}
    if leave_after is not None:
        asyncio.get_running_loop().call_later(leave_after, gone.set)
    async with asyncio.timeout(60):
        await app(scope, receive, send)
    return answer


def converse(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """One conversation by hand, to its end."""

    async def go() -> None:
        await app(scope, receive, send)

    asyncio.run(go())


def call(app: ASGIApp, body: object = None, **options: Any) -> Answer:
    """``acall`` in a loop of its own."""
    return asyncio.run(acall(app, body, **options))


async def unread(
    app: ASGIApp, path: str, body: object, read: asyncio.Event, sent: list[bytes], key: str = "", method: str = "POST"
) -> None:
    """A request whose client reads nothing of the answer's body until it is told to."""
    unsent = [json.dumps(body).encode()]

    async def receive() -> Message:
        return {"type": "http.request", "body": unsent.pop()} if unsent else await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])
            await read.wait()

    headers = [(b"content-type", b"application/json"), *([(b"authorization", b"Bearer " + key.encode())] if key else [])]
    await app({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
