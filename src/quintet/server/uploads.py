"""``multipart/form-data`` bodies with one file in them, which goes to the disk as it comes: nothing of it is held in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from multipart import MultipartError, MultipartSegment, ParserLimitReached, PushMultipartParser, parse_options_header

from quintet.batches.folder import Draft
from quintet.errors import BadRequest, SlowBody, UnsupportedMedia, printable
from quintet.server.bodies import too_large
from quintet.server.http import BODY_S, ClientGoneError, Request

FILE = "file"

_TYPE = "multipart/form-data"
_INVALID = "invalid_body"
_MOST_PARTS = 8
_MOST_FIELD = 1024  # bytes of a value
_MOST_HEADER = 4096
_MOST_BOUNDARY = 200  # RFC 2046: 70
_MOST_AROUND = 64 * 1024  # of the body beside the file
_WRITE_BYTES = 256 * 1024
"""Of the file at once; as much of the body must arrive within ``BODY_S``, or a byte now and then would keep an upload's place for ever."""


@dataclass(slots=True)
class Form:
    """What was sent, beside the file.

    Args:
        file_name: ``None`` = there was no file.
    """

    fields: dict[str, str] = field(default_factory=dict)
    file_name: str | None = None


class Upload:
    """Reads a form.

    Args:
        draft: where its file goes.
        most: bytes of that.
        count: told of bytes before they are written; may raise what ``read`` then raises.
    """

    def __init__(self, http: Request, draft: Draft, most: int, count: Callable[[int], None]) -> None:
        self._http, self._draft, self._most, self._count = http, draft, most, count
        self._form = Form()
        self._part = ""  # the name of the one that arrives
        self._value = bytearray()  # of the field, or what of the file is not written yet

    async def read(self) -> Form:
        """All of it; the file is in the draft then.

        Raises:
            UnsupportedMedia: it is no form.
            BadRequest: it is malformed, or not what a form with a file is.
            BodyTooLarge: the file is.
            SlowBody: for so long too little came.
            ClientGoneError: the client left.
            OSError: the disk does not take it.
        """
        boundary = _boundary(self._http)
        parser = PushMultipartParser(
            boundary, max_header_size=_MOST_HEADER, max_segment_size=self._most, max_segment_count=_MOST_PARTS
        )  # not its strict mode, which refuses a line break after the end if that comes by itself
        try:
            async for data in self._chunks():
                for event in parser.parse(data):
                    await self._take(event)
            parser.close()  # type: ignore[no-untyped-call]
        except ParserLimitReached:
            if self._part == FILE:
                raise too_large(self._most) from None
            rule = f"The form must have at most {_MOST_PARTS} parts, and headers of at most {_MOST_HEADER} bytes"
            raise BadRequest("", rule, code=_INVALID) from None
        except MultipartError as error:  # its further arguments are exceptions, with what was sent
            raise BadRequest("", f"The body is not valid {_TYPE}: {error.args[0]}", code=_INVALID) from None
        return self._form

    async def _chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Its time is counted only while it is waited for: the disk's is not the client's."""
        clock = asyncio.get_running_loop().time
        size, more, enough, left = 0, True, _WRITE_BYTES, BODY_S
        while more:
            begun = clock()
            try:
                async with asyncio.timeout(left):
                    message = await self._http.receive()
            except TimeoutError:
                raise SlowBody(f"Less than {_WRITE_BYTES} bytes of the body arrived within {BODY_S:g} seconds.") from None
            left -= clock() - begun
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            more = message.get("more_body", False)
            if data := message.get("body", b""):
                size += len(data)
                if size > self._most + _MOST_AROUND:
                    raise too_large(self._most)
                if size >= enough:
                    enough, left = size + _WRITE_BYTES, BODY_S
                yield data

    async def _take(self, event: MultipartSegment | bytes | bytearray | None) -> None:
        if isinstance(event, MultipartSegment):
            self._begin(event)
        elif event is not None:
            self._value += event
            await self._spill(_WRITE_BYTES)
        else:
            await self._end()

    def _begin(self, segment: MultipartSegment) -> None:
        name = segment.name or ""
        if not name:  # RFC 7578, 4.2: the header "MUST also contain an additional parameter of 'name'"
            raise BadRequest("", "Each part of the form must have a name", code=_INVALID)
        if name in self._form.fields or (name == FILE and self._form.file_name is not None):
            raise BadRequest(printable(name), "must come once", code=_INVALID)
        if name == FILE:
            self._form.file_name = segment.filename or ""
        self._part = name

    async def _spill(self, least: int) -> None:
        if self._part == FILE and len(self._value) >= least:
            data = bytes(self._value)
            self._value.clear()
            self._count(len(data))
            await asyncio.to_thread(self._draft.write, data)
        elif self._part != FILE and len(self._value) > _MOST_FIELD:
            raise BadRequest(printable(self._part), f"must be at most {_MOST_FIELD} bytes", code=_INVALID)

    async def _end(self) -> None:
        await self._spill(1)
        if self._part != FILE:
            try:
                self._form.fields[self._part] = self._value.decode("utf-8")
            except UnicodeDecodeError:
                raise BadRequest(printable(self._part), "must be UTF-8", code=_INVALID) from None
            self._value.clear()
        self._part = ""


def _boundary(http: Request) -> str:
    media, options = parse_options_header(http.headers.get("content-type", ""))  # type: ignore[no-untyped-call]
    if media != _TYPE or "content-encoding" in http.headers:
        raise UnsupportedMedia(f"Content-Type must be {_TYPE}, without a Content-Encoding.")
    boundary: str = options.get("boundary", "")
    if not (0 < len(boundary) <= _MOST_BOUNDARY and boundary.isascii() and boundary.isprintable()):
        raise BadRequest("", f"The Content-Type must have a boundary of 1 to {_MOST_BOUNDARY} ASCII characters", code=_INVALID)
    return boundary
