"""HTTP/1.1 over uvicorn and httptools, with the limits in time and size that they do not have themselves.

What arrives is handed to the parser in pieces that end where a request may end, so that never more than one is begun::

    data ──► _data ──► parser ──► cycle ──► application
              │ waits while a request is answered, or its answer is not yet off our hands
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Coroutine
from contextvars import Context
from types import SimpleNamespace
from typing import Any

import httptools
import uvicorn
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from quintet.listen import linger
from quintet.listen.chunks import END, OVERLAP, Chunks
from quintet.listen.crowd import HURRY_S, Crowd
from quintet.listen.linger import Connection

HEAD_S = 10.0
"""Seconds from a connection's opening, or a further request's first byte, to the end of the head."""

HEAD_BYTES = 64 * 1024
"""Most bytes of a head that is not complete; the application's own limits, which answer more politely, are below it."""

FRAMING_BYTES = 16 * 1024
"""Most bytes of a chunked body, one after the other, that are not content: trailers and a chunk's extensions, which mean nothing here."""

AHEAD_BYTES = 64 * 1024
"""Bytes of further requests that are taken before their turn; below it a client's leaving is still noticed at once."""

WRITE_BYTES = 64 * 1024
"""Bytes of an answer that wait for their client before the application is asked to wait too."""

STUCK_S = 30.0
"""Seconds for which a client may leave what it was sent unread, once the buffers towards it are full."""

_BREAKS = re.compile(rb"[\r\n]*")
_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")  # RFC 3986, 3.2.2 and a port


class Protocol(HttpToolsProtocol):
    """One connection.

    - One request at a time: the next one is not parsed before this one's answer is in the system's hands.
    - A head that is too slow gets 408, one that is too large 431, as do trailers without end; all end the connection.
    - Trailers are dropped: a header that comes after the body was not seen by who let the request in.
    - Nothing is upgraded: a request that offers another protocol is answered in this one, after its body, and CONNECT ends the connection.
    - An answer that starts before its request has ended ends the connection, unless the rest is of known size, bounded, and comes soon.
    - A client that does not read is cut off, which ends its work; until then the application is not asked for more.

    Args:
        facts: what the application is told of the connection.
        crowd: is told when it waits, works and is over.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        facts: dict[str, Any],
        crowd: Crowd[Protocol],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        loop = loop or asyncio.get_running_loop()
        self._lost: asyncio.Future[None] = loop.create_future()
        super().__init__(config, state, {**facts, "lost": self._lost}, loop)
        self._crowd = crowd
        self._head_s = HEAD_S
        self._connected = False  # ``connection_made`` was called: ``connection_lost`` may come without it
        self.give_up: Callable[[], object] = lambda: None  # until then, over TLS with a handshake, whoever opens the connection says how
        self._is_last = False  # the request that is being answered, or else the next one, ends the connection
        self._connection: Connection = None  # type: ignore[assignment]
        self._head_timer: asyncio.TimerHandle | None = None
        self._stuck_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._data, self._at = b"", 0  # what has arrived, and how much of it the parser has had
        self._head_bytes = 0
        self._request_parser: httptools.HttpRequestParser | None = None  # ``parser``, while in its place one has the body
        self._left = 0  # bytes of a body of known length
        self._chunks: Chunks | None = None  # of a body that comes in chunks
        self._content: list[bytes] = []  # what the parser met in its last piece
        self._framing = 0  # bytes of a chunked body since the last of its content
        self._keep_alive = False  # after this request, once all of it is there

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._connected = True
        transport.set_write_buffer_limits(high=WRITE_BYTES)
        self._connection = Connection(transport, self.loop)
        super().connection_made(self._connection)
        self._start_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.left(self)
        if not self._lost.done():  # a connection that came about and failed at once may be told of twice
            self._lost.set_result(None)
        if not self._connected:
            return
        self._end_head()
        self._end_stuck()
        self._end_rest()
        self._request_parser = None
        super().connection_lost(exc)  # which closes once more
        self._connection.end()

    def shutdown(self) -> None:
        self._keep_alive = False
        super().shutdown()
        if self._connection.lingers:
            self._connection.close()

    def hurry(self) -> None:
        """One request, and little time for it."""
        self._is_last, self._head_s = True, HURRY_S

    def leave(self) -> None:
        """What is being asked, or else the next request, is the last; its answer says so."""
        self._is_last, self._keep_alive = True, False
        if not self._idle and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def give_way(self) -> None:
        """Close: it waits for a request, and others for its place."""
        if not self._connected:
            self.give_up()
            return
        self._connection.unread = False  # at once: its descriptor is wanted
        if self._head_timer is not None and self._head_bytes:
            self._refuse(b"408 Request Timeout")
        self._connection.give_way()

    # What arrives

    def data_received(self, data: bytes) -> None:
        if self._connection.lingers:
            self._connection.waste(len(data))
            return
        had = max(0, self._at - OVERLAP)
        self._data = self._data[had:] + data
        self._at -= had
        self._parse()

    def _parse(self) -> None:
        """Hand to the parser what has its turn."""
        while self._at < len(self._data) and not self._waits and not self.transport.is_closing():
            end = self._next_end()
            if end == self._at:
                break
            piece = self._data[self._at : end]
            self._at = end
            super().data_received(piece)
            self._check(len(piece), content=self._pass_on())
        if self.transport.is_closing():
            self._data, self._at = b"", 0
        elif self._at == len(self._data):  # however long the answer takes, nothing that the parser has had is kept
            self._data = self._data[-OVERLAP:]
            self._at = len(self._data)
        self._connection.full = len(self._data) - self._at > AHEAD_BYTES
        if self._connection.full:
            self._connection.pause_reading()

    @property
    def _waits(self) -> bool:
        """The next request is not begun yet."""
        return not self._connection.unread and (not self._idle or self.flow.write_paused)

    def _next_end(self) -> int:
        """How far the parser can go without beginning another request; nowhere until more has come."""
        data, at = self._data, self._at
        if self._left:
            end = min(len(data), at + self._left)
            self._left -= end - at
            return end
        if self._chunks is not None:
            return self._chunks.end(data, at, min(len(data), at + FRAMING_BYTES + 1))  # one more than there may be without content
        most = min(len(data), at + FRAMING_BYTES)
        # Line breaks before a request are none of its end: taken for ends they were pieces of four bytes, by the thousand.
        begin = max(0, at - OVERLAP) if self._connection.unread else _end_of_breaks(data, at, most)
        found = data.find(END, begin, most)
        return found + len(END) if found >= 0 else most

    def _check(self, size: int, *, content: bool) -> None:
        """Limits, after the parser has had a piece of ``size`` bytes, with content or without."""
        if self.transport.is_closing():
            return
        if self._head_timer is not None:
            self._head_bytes += size
            if self._head_bytes > HEAD_BYTES:
                self._refuse(b"431 Request Header Fields Too Large" if self.headers else b"414 URI Too Long")
        elif self._connection.unread:
            self._framing = 0 if content else self._framing + size
            if self._framing > FRAMING_BYTES:
                self._refuse(b"431 Request Header Fields Too Large")
        elif self._idle and self.timeout_keep_alive_task is None:
            # Line breaks between requests: uvicorn has stopped its timer and would wait for ever.
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    # What the parser found

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._connection.unread = True
        if self._head_timer is None:
            self._start_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_timer is None:
            return
        # RFC 9110, 5.5: white space after a value is no part of it. How the parser itself read Transfer-Encoding is not known: not touched.
        super().on_header(name, value if name.lower() == b"transfer-encoding" else value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        self._end_head()
        self._crowd.works(self)
        self._require_framing()
        self._require_host()
        old = self.parser.get_http_version() == "1.0"
        # RFC 9110, 10.1.1: "A server that receives a 100-continue expectation in an HTTP/1.0 request MUST ignore that expectation."
        if old:
            self.expect_100_continue = False
        super().on_headers_complete()
        fields = dict(self.headers)  # the parser has refused two lengths, and a length with chunks
        self._chunks = Chunks() if b"transfer-encoding" in fields else None
        self._left = 0 if self._chunks else int(fields.get(b"content-length", b"0"))
        if old:
            self.cycle.send = _until_closed(self.cycle)  # type: ignore[method-assign, assignment]
        self._framing = 0
        # RFC 9110, 9.3.6: what follows a CONNECT is a tunnel's, and there is none
        self._keep_alive = self.cycle.keep_alive and not self._is_last and self.parser.get_method() != b"CONNECT"
        if not self._keep_alive or self._chunks or self._left > linger.LINGER_BYTES or self.expect_100_continue:
            self.cycle.keep_alive = False  # until all of the request is there

    def on_body(self, body: bytes) -> None:
        self._content.append(body)

    def _pass_on(self) -> bool:
        """Content, if there was any: all of a piece together, since there may be thousands of chunks in it."""
        content, self._content = self._content, []
        if content:
            super().on_body(b"".join(content))
        return bool(content)

    def on_message_complete(self) -> None:
        self._pass_on()
        if self._request_parser is not None:
            self.parser, self._request_parser = self._request_parser, None
        elif self.parser.should_upgrade() and (self._chunks or self._left):
            self._request_parser, self.parser = self.parser, self._body_parser()
            return
        self._end_rest()
        self._connection.unread = False
        self._left, self._chunks = 0, None
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keep_alive
        super().on_message_complete()

    def _body_parser(self) -> httptools.HttpRequestParser:
        """For the body of a request that offers another protocol, or of a CONNECT: to httptools these end with their heads.

        "A server MAY ignore a received Upgrade header field" (RFC 9110, 7.8); the message is then as long as its other fields say.
        """
        parser = httptools.HttpRequestParser(SimpleNamespace(on_body=self.on_body, on_message_complete=self.on_message_complete))
        framing = b"transfer-encoding: chunked" if self._chunks else b"content-length: %d" % self._left
        parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        return parser

    def _unsupported_upgrade_warning(self) -> None:
        """What is offered and not taken is nobody's fault."""

    def _require_framing(self) -> None:
        """
        Raises:
            ValueError: refused; the parser stops.
        """
        version = self.parser.get_http_version()
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        if version not in ("1.0", "1.1"):
            self._refuse(b"505 HTTP Version Not Supported")
            raise ValueError(version)
        # RFC 9112, 6.1: in HTTP/1.0 "MUST treat the message as if the framing is faulty"; any other coding would be read in two ways
        if codings and (version == "1.0" or codings != [b"chunked"]):
            self._refuse(b"400 Bad Request")
            raise ValueError(codings)

    def _require_host(self) -> None:
        """That of an absolute URL takes the place of the header: "MUST ignore the received Host header field" (RFC 9112, 3.2.2).

        Raises:
            ValueError: refused; the parser stops.
        """
        hosts = [value for name, value in self.headers if name == b"host"]
        missing = not hosts and self.parser.get_http_version() == "1.1"
        if missing or len(hosts) > 1 or not all(_HOST.fullmatch(host) for host in hosts):
            self._refuse(b"400 Bad Request")
            raise ValueError(hosts)
        if not self.url.startswith((b"/", b"*")):
            named = self.url.partition(b"://")[2]
            authority = re.split(rb"[/?#]", named, maxsplit=1)[0]
            self.headers[:] = [*(pair for pair in self.headers if pair[0] != b"host"), (b"host", authority)]

    # What is sent

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.cycle.body.clear()  # what came of it and nobody has read
        self._crowd.waits(self)
        if self._connection.unread and not self.transport.is_closing():
            self._rest_timer = self.loop.call_later(linger.LINGER_S, self.transport.abort)
        self._go_on()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck_timer is None:
            self._stuck_timer = self.loop.call_later(STUCK_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_stuck()
        super().resume_writing()
        self._go_on()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's
        self._connection.unread = True
        self._refuse(b"400 Bad Request")

    def _go_on(self) -> None:
        """Go on with the next request, if it is its turn."""
        if self._at == len(self._data) or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        if not self._waits:
            Context().run(self._parse)  # not in that of the task whose answer ended: nothing of its request is the next one's
            if not self._connection.full and not self.flow.read_paused:
                self._connection.resume_reading()

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _start_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self._head_s, self._refuse, b"408 Request Timeout")

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_stuck(self) -> None:
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
            self._stuck_timer = None

    def _end_rest(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _refuse(self, status: bytes) -> None:
        self._end_head()
        if self.transport.is_closing():
            return
        if self._idle or not self.cycle.response_started:  # else it would stand in the middle of another answer
            self.transport.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status)
        if not self._idle:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


def _end_of_breaks(data: bytes, begin: int, end: int) -> int:
    found = _BREAKS.match(data, begin, end)
    return found.end() if found else begin


def _until_closed(cycle: RequestResponseCycle) -> Callable[[ASGISendEvent], Coroutine[Any, Any, None]]:
    """To HTTP/1.0, which has no chunks, an answer of unknown length goes as it is, and ends with the connection (RFC 9112, 6.3)."""
    send = cycle.send

    async def plain(message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            if not any(name.lower() == b"content-length" for name, _ in message.get("headers", ())):
                cycle.chunked_encoding, cycle.expected_content_length = False, math.inf  # type: ignore[assignment]
        elif message["type"] == "http.response.body" and not message.get("more_body") and cycle.expected_content_length == math.inf:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return plain
