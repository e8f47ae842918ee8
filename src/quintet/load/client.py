"""One request to an OpenAI-style server, told as a ``Trace``: a raw socket, and as little parsing as will do.

On a small machine the client shares the cores with the server, so each event costs it a search for a few bytes and a time stamp.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import cast
from urllib.parse import urlsplit

from quintet.errors import shorten
from quintet.load.trust import untrusted

_EMPTY_TEXT, _SPACED_EMPTY_TEXT = b'"text":""', b'"text": ""'
_NOT_ENDED = "not ended"
_FAILURES = (
    ("no connection", "no connection"),
    (_NOT_ENDED, "timed out"),
    ("the answer broke", "broke off"),
    ("no HTTP", "no HTTP"),
    ("no completion", "no completion"),
    ("{", "error in the stream"),
)
"""What ``Trace.error`` begins with, and what kind of failure it is."""

_USAGE, _SPACED_USAGE = b'"usage":{', b'"usage": {'
# A member `error` wherever it stands, beside the members of a chunk too. Inside a text its quotes would be escaped, and as a token that
# log-probabilities name it would have a number.
_ERROR = re.compile(rb'"error"\s*:\s*(?:\{|"[^"])|"object"\s*:\s*"error"')
_STATUS = re.compile(rb"HTTP/1\.\d (\d{3})\b")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*(?:\r\n|$)")
_DONE = b"[DONE]"


@dataclass(slots=True)
class Trace:
    """What happened to one request. Times are seconds of ``time.perf_counter``.

    Args:
        due: when it should have been sent (open loop), else when it was.
        keep: whether ``body`` is wanted of a stream too.
        times: arrival of each event that carries text; of an answer that is no stream, its end.
        tokens: completion tokens by the server's usage, of all choices; 0 if it sent none.
        prompt_tokens: by the same.
        status: HTTP status, 0 if none came.
        error: why it failed; empty if it ended well.
        body: the answer if it is no stream; of a stream the payloads of its events, one a line, if ``keep``.
    """

    due: float
    keep: bool = False
    times: list[float] = field(default_factory=list)
    tokens: int = 0
    status: int = 0
    error: str = ""
    end: float = 0.0
    body: bytes = b""
    prompt_tokens: int = 0

    def event(self, data: bytes, now: float) -> None:
        """Take the payload of one ``data:`` line."""
        if b'"error"' in data and _ERROR.search(data):
            self.error = data[:300].decode(errors="replace")
        elif b'"text"' in data and _EMPTY_TEXT not in data and _SPACED_EMPTY_TEXT not in data:
            self.times.append(now)
        if self.keep:
            self.body += data + b"\n"
        if _USAGE in data or _SPACED_USAGE in data:  # once, for all choices, or for each choice in its last event
            self.read_usage(data)

    def read_usage(self, data: bytes) -> None:
        """Take the server's usage out of an event or an answer; what it does not tell, or not in numbers, counts as none."""
        with suppress(ValueError, RecursionError, LookupError, TypeError, AttributeError, OverflowError):
            usage = json.loads(data)["usage"]
            self.tokens += int(usage.get("completion_tokens") or 0)
            self.prompt_tokens += int(usage.get("prompt_tokens") or 0)

    def ended(self, now: float) -> None:
        """An answer that is no stream is complete."""
        self.times.append(now)

    @property
    def per_event(self) -> float:
        """Tokens per event with text: a server may send several at once, or none for half a character."""
        return (self.tokens or len(self.times)) / max(len(self.times), 1)

    @property
    def failure(self) -> str:
        """What kind of failure it was, in few words that others of its kind share; empty if it ended well."""
        if self.good:
            return ""
        if self.status not in (0, 200):
            return f"status {self.status}"
        if not self.error:
            return "no text"
        return next((kind for start, kind in _FAILURES if self.error.startswith(start)), "no answer")

    @property
    def unanswered(self) -> bool:
        """Nobody answered, or not to the end while there was time; of an error's answer ``failure`` only tells the status."""
        return not self.status or self.error.startswith(_NOT_ENDED)

    @property
    def good(self) -> bool:
        """It ended well, with text."""
        return not self.error and bool(self.times)


class Chunked:
    """Incremental reader of an HTTP/1.1 chunked body. What is none is a ``ValueError``."""

    def __init__(self) -> None:
        self._raw = b""
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """The body bytes of every chunk that is complete; the rest is kept."""
        raw, position, body = self._raw + data, 0, b""
        while not self.done and (line := raw.find(b"\r\n", position)) >= 0:
            size = int(raw[position:line].partition(b";")[0], 16)
            if size < 0:
                raise ValueError("a chunk of a negative size")
            stop = line + 2 + size
            if len(raw) < stop + 2:
                break
            body += raw[line + 2 : stop]
            position, self.done = stop + 2, size == 0
        self._raw = raw[position:]
        return body


class Counted:
    """The same of a body whose length was told."""

    def __init__(self, size: int) -> None:
        self._left = size

    @property
    def done(self) -> bool:
        return not self._left

    def feed(self, data: bytes) -> bytes:
        """Those of the bytes that are the body's."""
        body = data[: self._left]
        self._left -= len(body)
        return body


class Exchange(asyncio.Protocol):
    """One request on one connection, which ends with the answer; ``done`` is called when that ended, well or not."""

    def __init__(self, request: bytes, trace: Trace, done: Callable[[], None]) -> None:
        self._request, self._trace, self._done = request, trace, done
        self._head = self._tail = b""
        self._is_stream = self._has_ended = False
        self._framing: Chunked | Counted | None = None  # else the body goes on until the server closes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by behaviour, not by class
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._received(data, time.perf_counter())
        except ValueError as error:
            self._trace.error = f"no HTTP: {error}"
            self._transport.close()

    def _received(self, data: bytes, now: float) -> None:
        if not self._trace.status:
            data = self._header(data)
        if self._framing:
            data = self._framing.feed(data)
        if self._is_stream:
            self._events(data, now)
        else:
            self._trace.body += data
        if self._framing and self._framing.done:
            self._transport.close()

    def _events(self, data: bytes, now: float) -> None:
        *lines, self._tail = (self._tail + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                payload = line[5:].strip()
                self._has_ended = payload == _DONE
                self._trace.event(payload, now)

    def _header(self, data: bytes) -> bytes:
        """Collect the head; return what follows it, empty while it is incomplete."""
        self._head += data
        while True:
            head, end, rest = self._head.partition(b"\r\n\r\n")
            if not end:
                return b""
            status = _STATUS.match(head)
            if status is None:
                raise ValueError(shorten(head))
            if not status[1].startswith(b"1"):
                break
            self._head = rest  # RFC 9110, 15.2: such a head is "prior to ... the final response"
        self._trace.status = int(status[1])
        fields = head.lower()
        self._is_stream = b"text/event-stream" in fields
        if b"transfer-encoding: chunked" in fields:
            self._framing = Chunked()
        elif length := _LENGTH.search(fields):
            self._framing = Counted(int(length[1]))
        return rest

    def connection_lost(self, exc: Exception | None) -> None:
        trace = self._trace
        if trace.end:  # it was given up
            return
        trace.end = time.perf_counter()
        trace.error = trace.error or self._fault(exc)
        if not trace.error and not self._is_stream:
            trace.ended(trace.end)
        self._done()

    def _fault(self, exc: Exception | None) -> str:
        """Why the answer is no whole completion; empty if it is one."""
        body = self._trace.body
        complete = self._framing.done if self._framing else exc is None
        if self._trace.status != 200:
            return f"status {self._trace.status}: {body[:300].decode(errors='replace')}"
        if not complete:
            return f"the answer broke off: {exc or 'connection closed'}"
        if self._is_stream:  # every page's: "terminated by a `data: [DONE]` message"
            return "" if self._has_ended else "the answer broke off: there is no data: [DONE]"
        return "" if b'"choices"' in body else f"no completion: {body[:300].decode(errors='replace')}"


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go.

    Args:
        url: of completions, http or https.
        timeout: seconds that one answer may take in all.
        headers: sent as well.
    """

    url: str
    model: str = "default"
    api_key: str = ""
    timeout: float = 300.0
    headers: tuple[tuple[str, str], ...] = ()

    def request(self, body: dict[str, object]) -> bytes:
        """The raw HTTP request with this body; a ``model`` in the body goes before ours."""
        at = urlsplit(self.url)
        payload = json.dumps({"model": self.model, **body}).encode()
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        more = key + "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        head = f"POST {at.path} HTTP/1.1\r\nHost: {at.netloc}\r\n{more}Content-Type: application/json\r\nConnection: close\r\n"
        return f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload

    async def send(self, request: bytes, trace: Trace) -> None:
        """Send a request and read the answer to its end; a failure is in the trace, never raised. Cancelled, it cuts the connection."""
        loop, at = asyncio.get_running_loop(), urlsplit(self.url)
        done = asyncio.Event()
        try:
            async with asyncio.timeout(self.timeout):
                secure = _tls() if at.scheme == "https" else None
                port = at.port or (443 if secure else 80)
                make = partial(Exchange, request, trace, done.set)
                transport, _ = await loop.create_connection(make, at.hostname or "", port, ssl=secure)
                try:
                    await done.wait()
                finally:
                    transport.abort()
        except TimeoutError:
            trace.error, trace.end = f"{_NOT_ENDED} after {self.timeout:g} s", time.perf_counter()
        except OSError as error:
            why = untrusted(error) if isinstance(error, ssl.SSLCertVerificationError) else error
            trace.error, trace.end = f"no connection: {why}", time.perf_counter()
