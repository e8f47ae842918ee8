"""An HTTP request and its response, over ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from urllib.parse import parse_qs

from quintet.errors import HeadTooLarge, SlowBody
from quintet.server.asgi import Headers, Message, Receive, Scope, Send, arrived
from quintet.server.bodies import check_media, too_large
from quintet.server.body_room import SMALL_BYTES, BodyHold

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

_LINGER = 64 * 1024 * 1024
"""A refused body up to this size is read away by the HTTP server, so that the client gets to read the answer and can go on."""

MOST_URL = 8 * 1024
MOST_HEADERS = 100
MOST_HEADER_BYTES = 32 * 1024

PIECE_BYTES = 64 * 1024
"""Of an answer that are written at once."""

CLIENT_LEFT = 499
"""In place of a status, where the client left before the answer began: nginx' number for it."""

PUBLIC, ADMIN = "public", "admin"
"""Names of the sockets that connections come over."""

BODY_S = 30.0
"""Seconds in which a body must have arrived."""


class ClientGoneError(ConnectionError):
    """The client closed the connection; nobody is left to answer."""


class Request:
    """A request, and the response to it.

    Args:
        fresh_id: the request id if the client sent none that is safe to repeat.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, fresh_id: str) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]  # not derived from the Host header, which the client writes
        self.raw_path: bytes = scope.get("raw_path") or self.path.encode()
        self.query: bytes = scope.get("query_string", b"")
        self.address: str = (scope.get("client") or ("",))[0]
        facts = scope.get("state", {})
        self.listener: str = facts.get("listener", PUBLIC)
        self.crowded: bool = facts.get("crowded", False)  # the connection is one too many: it is there for the probes
        self.lost: asyncio.Future[None] | None = facts.get("lost")  # done when the connection is over
        self.headers = Headers(list(scope["headers"]))
        self.receive = receive
        self.status = 0
        self.ended = False
        """The last byte was handed over."""
        self.unpacked = 0
        """Bytes of its body, without any compression, at most as many as one may have; 0 = it was not unpacked yet."""
        self.left = False
        """The client is gone, and the answer, which had begun, is not complete."""
        self.always: list[tuple[str, str]] = []  # headers of the answer, whatever it will be
        self.hold: BodyHold | None = None  # of the memory for bodies; None = of a body that is there
        self.limits: Callable[[], Iterable[tuple[str, str]]] = tuple  # those that say where the caller's limits stand when it begins
        self.before_end: list[Callable[[], object]] = []  # done before the last byte of the answer is handed over
        self._send = send
        given = self.headers.get("x-request-id", "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else fresh_id

    @property
    def started(self) -> bool:
        """The status line is out."""
        return self.status > 0

    @property
    def gone(self) -> bool:
        """The connection is over."""
        return self.lost is not None and self.lost.done()

    def check_head(self) -> None:
        """
        Raises:
            HeadTooLarge: URL or headers over the limits.
        """
        if len(self.raw_path) + len(self.query) > MOST_URL:
            raise HeadTooLarge(f"The URL must be at most {MOST_URL} bytes.", 414)
        if len(self.headers.raw) > MOST_HEADERS:
            raise HeadTooLarge(f"There must be at most {MOST_HEADERS} headers.", 431)
        if sum(len(name) + len(value) for name, value in self.headers.raw) > MOST_HEADER_BYTES:
            raise HeadTooLarge(f"The headers must be at most {MOST_HEADER_BYTES} bytes.", 431)

    def argument(self, name: str) -> str:
        """A parameter of the query, the first of equals; empty if it is not there."""
        return parse_qs(self.query.decode("latin-1")).get(name, [""])[0]

    async def start(self, status: int, media: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send the status line and headers."""
        self.status = status
        lines = [("content-type", media), ("x-request-id", self.request_id), *self.always, *self.limits(), *headers]
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lines]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    def write(self, data: bytes, last: bool = False) -> Awaitable[None]:
        """Send a part of the body; to be awaited: that waits while the client reads too slowly."""
        return self._end(data) if last else self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _end(self, data: bytes) -> None:
        for done in self.before_end:
            done()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})
        self.ended = True

    async def forward(self, message: Message) -> None:
        """Send what was made for another request."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)

    def detached(self, body: bytes, send: Send) -> Request:
        """The same request, whose body is here, whose client does not leave, and whose answer goes to ``send``."""
        other = copy.copy(self)
        other.receive, other._send, other.always = arrived(body), send, list(self.always)
        return other

    async def reply(self, status: int, body: bytes, headers: Iterable[tuple[str, str]] = (), media: str = "application/json") -> None:
        """Answer at once; in pieces, so that of a large answer little more than one waits in the buffers towards a client."""
        await self.start(status, media, [("content-length", str(len(body))), *headers])
        last = max(0, len(body) - 1) // PIECE_BYTES * PIECE_BYTES
        for at in range(0, last, PIECE_BYTES):
            await self.write(body[at : at + PIECE_BYTES])
        await self.write(body[last:], last=True)

    async def body(self, most: int, *, packed: bool = False, typed: bool = False) -> bytes:
        """The request body as it was sent.

        Args:
            packed, typed: see ``check_media``.

        Raises:
            UnsupportedMedia: see ``check_media``.
            BodyTooLarge: over ``most`` bytes; noticed before more than that is read or kept.
            Overloaded: there is no room for it.
            SlowBody: not complete after ``BODY_S`` seconds.
            ClientGoneError: the client left before it was complete.
        """
        check_media(self.headers, packed=packed, typed=typed)
        if self._declared() > most:
            raise too_large(most)
        await self._take_room(self._declared())
        try:
            async with asyncio.timeout(BODY_S):
                return await self._read(most)
        except TimeoutError:
            raise SlowBody(f"The body did not arrive within {BODY_S:g} seconds.") from None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """After this the body is not needed any more."""
        try:
            yield
        finally:
            self.let_go()

    def let_go(self) -> None:
        """The body is not needed any more."""
        if self.hold is not None:
            self.hold.let_go()

    async def _take_room(self, size: int) -> None:
        if self.hold is not None and not await self.hold.take(size):
            raise ClientGoneError

    async def _read(self, most: int) -> bytes:
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > SMALL_BYTES:  # of an undeclared size; else it has room
                await self._take_room(most)
            more = message.get("more_body", False)
            if size > most:
                raise too_large(most)
        return b"".join(parts)

    @property
    def endless(self) -> bool:
        """The unread rest of the body is too large, or of unknown size: close the connection after the answer."""
        return "transfer-encoding" in self.headers or self._declared() > _LINGER

    def _declared(self) -> int:
        length = self.headers.get("content-length", "0")
        return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else _LINGER + 1
