"""One HTTP request and its answer."""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from quintet.errors import BodyTooLarge, UnsupportedMedia

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

_LINGER = 64 * 1024 * 1024
"""A refused body up to this size is read away by the HTTP server, so that the client gets to read the answer and can go on."""


class ClientGoneError(ConnectionError):
    """The client closed the connection; nobody is left to answer."""


class Exchange:
    """What a handler needs of ASGI.

    Args:
        fresh_id: the request id if the client sent none that is safe to repeat.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, fresh_id: str) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]  # not derived from the Host header, which the client writes
        self.raw_headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        self.headers = Headers(raw=self.raw_headers)
        self.receive = receive
        self.started = False
        self._send = send
        given = self.headers.get("x-request-id", "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else fresh_id

    async def start(self, status: int, media: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send the status line and headers."""
        self.started = True
        lines = [("content-type", media), ("x-request-id", self.request_id), *headers]
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lines]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes, last: bool = False) -> None:
        """Send a part of the body; waits while the client reads too slowly."""
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def reply(self, status: int, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Answer with JSON."""
        await self.start(status, "application/json", [("content-length", str(len(body))), *headers])
        await self.write(body, last=True)

    async def body(self, most: int) -> bytes:
        """The request body.

        Raises:
            UnsupportedMedia: see ``_check_media``.
            BodyTooLarge: over ``most`` bytes; noticed before more than that is read or kept.
            ClientGoneError: the client left before it was complete.
        """
        self._check_media()
        if self._declared() > most:
            raise BodyTooLarge(_too_large(most))
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
            if size > most:
                raise BodyTooLarge(_too_large(most))
        return b"".join(parts)

    @property
    def endless(self) -> bool:
        """The unread rest of the body is too large, or of unknown size: close the connection after the answer."""
        return "transfer-encoding" in self.headers or self._declared() > _LINGER

    def _declared(self) -> int:
        length = self.headers.get("content-length", "0")
        return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else _LINGER + 1

    def _check_media(self) -> None:
        """JSON in UTF-8, uncompressed.

        A missing type and curl's default for ``-d`` are read as JSON too (never as a form). But a browser is held to
        ``application/json``: it cannot send that to another site's server without asking first, so no web page can put this machine
        to work behind its user's back.
        """
        media, *parameters = (part.strip().lower() for part in self.headers.get("content-type", "").split(";"))
        browser = "origin" in self.headers or "sec-fetch-site" in self.headers
        if media != "application/json" and (browser or media not in ("", "application/x-www-form-urlencoded")):
            raise UnsupportedMedia("Content-Type must be application/json.")
        charsets = [one.removeprefix("charset=").strip('"') for one in parameters if one.startswith("charset=")]
        if any(one not in ("utf-8", "utf8") for one in charsets):
            raise UnsupportedMedia("The charset must be utf-8.")
        if self.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
            raise UnsupportedMedia("Content-Encoding is not supported; send the body uncompressed.")


def _too_large(most: int) -> str:
    return f"The body must be at most {most} bytes."
