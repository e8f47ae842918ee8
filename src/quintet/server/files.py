"""``/v1/files``: what is uploaded for batches, and what comes of them. A key sees its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

from quintet.batch import File, Purpose, kept_s
from quintet.batches.folder import Draft
from quintet.batches.store import Quota
from quintet.dialects.batches import ANCHOR, SECONDS, Batches, expiry, files_page
from quintet.errors import BadRequest, NotFound, ServerError, printable
from quintet.inputs.room import Room
from quintet.server.call import Call
from quintet.server.cors import Cors
from quintet.server.kept import Kept, storing
from quintet.server.large_answers import LargeAnswers
from quintet.server.source import Source
from quintet.server.uploads import FILE, Form, Upload

_log = logging.getLogger(__name__)

MOST_FILES = 10_000
"""Of a key."""

MOST_AT_ONCE = 64
"""Files that come or go. Each has a descriptor, of those that no connection gets, and a piece in memory, as long as its client takes."""

_PIECE = 256 * 1024
_MOST_NAME = 255
_EXPIRES = "expires_after"


class Files:
    """Endpoints.

    Args:
        cors: which web sites' pages may upload.
        answers: for lists.
    """

    def __init__(self, kept: Kept, source: Source, cors: Cors, answers: LargeAnswers) -> None:
        self._kept, self._source, self._cors, self._answers = kept, source, cors, answers
        self._moving = Room(MOST_AT_ONCE, "files that come or go")
        self._arriving: Counter[str] = Counter()  # bytes of uploads that are not done, by their owners

    async def create(self, call: Call) -> None:
        """``POST /v1/files``: a form."""
        self._cors.require_allowed(call.http)
        config, folder = self._kept.config, await self._kept.folder()
        with self._moving.held(call.caller.id, 1), storing(folder):
            draft = await asyncio.to_thread(folder.draft)
            try:
                async with self._counted(call.caller.owner) as count:
                    form = await Upload(call.http, draft, config.max_file, count).read()
                    file = await self._keep(call, form, draft)
            finally:
                await asyncio.to_thread(draft.drop)
        await call.http.reply(200, shapes(call).file(file))

    async def list(self, call: Call) -> None:
        """``GET /v1/files``."""
        page = files_page(**{name: call.http.argument(name) for name in ("after", "limit", "order", "purpose")})
        owner, now = call.caller.owner, self._source.now
        query = partial(
            self._kept.do,
            lambda store: store.files(owner, now(), page.after, page.limit, ascending=page.ascending, purpose=page.purpose),
        )
        await self._answers.send_list(call, query, shapes(call).files)

    async def show(self, call: Call) -> None:
        """``GET /v1/files/{id}``."""
        file = await self._file(call)
        await call.http.reply(200, shapes(call).file(file))

    async def content(self, call: Call) -> None:
        """``GET /v1/files/{id}/content``."""
        file = await self._file(call)
        with self._moving.held(call.caller.id, 1):
            await _send(call, (await self._kept.folder()).content(file.id), file.size)

    async def delete(self, call: Call) -> None:
        """``DELETE /v1/files/{id}``."""
        folder = await self._kept.folder()
        await self._kept.do(lambda store: store.delete_file(call.tail, call.caller.owner, self._source.now()))
        await asyncio.to_thread(folder.remove, call.tail)
        await call.http.reply(200, shapes(call).deleted(call.tail))

    @contextlib.asynccontextmanager
    async def _counted(self, owner: str) -> AsyncIterator[Callable[[int], None]]:
        """For an upload: what counts its bytes as they come, and refuses those that its owner may not keep.

        Whether the whole file may be kept is asked when it is there; but it may take its time, and there may be many.
        """
        quota = self._quota
        stored = await self._kept.do(lambda store: store.stored(owner))
        size = 0

        def count(more: int) -> None:
            nonlocal size
            quota.require(stored, self._arriving[owner] + more)
            self._arriving[owner] += more
            size += more

        count(0)
        try:
            yield count
        finally:
            self._arriving[owner] -= size
            self._arriving += Counter()  # drops those with nothing

    @property
    def _quota(self) -> Quota:
        return Quota(MOST_FILES, self._kept.config.max_stored)

    async def _file(self, call: Call) -> File:
        return await self._kept.do(lambda store: store.file(call.tail, call.caller.owner, self._source.now()))

    async def _keep(self, call: Call, form: Form, draft: Draft) -> File:
        file = self._described(call, form, draft)
        await asyncio.to_thread(draft.keep, file.id)
        try:
            await self._kept.do(lambda store: store.add_upload(file, self._quota))
        except BaseException:
            await asyncio.to_thread((await self._kept.folder()).remove, file.id)
            raise
        return file

    def _described(self, call: Call, form: Form, draft: Draft) -> File:
        """The file that a form is to make of a draft.

        Raises:
            BadRequest: a field is missing, malformed or unknown, or the file is empty.
        """
        fields = dict(form.fields)
        if form.file_name is None:
            raise BadRequest(FILE, "is required", code="missing_required_parameter")
        if "purpose" not in fields:
            raise BadRequest("purpose", "is required", code="missing_required_parameter")
        shapes(call).purpose(fields.pop("purpose"))
        now, keep = int(self._source.now()), kept_s(self._kept.config.keep, _expiry(fields))
        if not draft.size:
            raise BadRequest(FILE, "must not be empty")
        return File(
            id=f"file-{self._source.token()}",
            owner=call.caller.owner,
            name=form.file_name[:_MOST_NAME],
            purpose=Purpose.BATCH,
            size=draft.size,
            created=now,
            expires=now + keep if keep else None,
            lines=draft.lines,
        )


def shapes(call: Call) -> Batches:
    """How the caller's dialect has files and batches; routes of others are not there."""
    assert call.provider.batches is not None
    return call.provider.batches


def _expiry(fields: dict[str, str]) -> int:
    """Seconds of ``expires_after[anchor]`` and ``expires_after[seconds]``, as forms have objects; 0 = they are not there."""
    members: dict[str, object] = {}
    for member in (ANCHOR, SECONDS):
        if (value := fields.pop(f"{_EXPIRES}[{member}]", None)) is not None:
            members[member] = value
    if fields:
        raise BadRequest(printable(next(iter(fields))), "is not a field of this form", code="unknown_parameter")
    seconds = members.get(SECONDS)
    if isinstance(seconds, str) and seconds.isascii() and seconds.isdigit() and len(seconds) < 10:
        members[SECONDS] = int(seconds)
    return expiry(_EXPIRES, members) if members else 0


async def _send(call: Call, path: Path, size: int) -> None:
    """A file's content, as fast as the client reads, and as long as it is there; nothing of it to who asks for the head alone."""
    fd = await asyncio.to_thread(_opened, path, size)
    try:
        await call.http.start(200, "application/octet-stream", [("content-length", str(size))])
        for start in range(0, 0 if call.http.method == "HEAD" else size, _PIECE):
            if call.http.gone:
                call.http.left = True
                return
            data = await asyncio.to_thread(os.pread, fd, min(_PIECE, size - start), start)
            await call.http.write(data)
        await call.http.write(b"", last=True)
    finally:
        os.close(fd)


def _opened(path: Path, size: int) -> int:
    """A descriptor of a file's content.

    Raises:
        NotFound: it is gone.
        ServerError: it cannot be read, or is not what was kept, and the log says why.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO that somebody put there would be waited for for ever
    except FileNotFoundError:
        raise NotFound("The file's content is not there any more.") from None
    except OSError as error:
        _log.error("batches: %s", error)
        raise ServerError("The file's content cannot be read.") from None
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_size != size:
        os.close(fd)
        _log.error("batches: %s is not the file of %d bytes that was kept there", path, size)
        raise ServerError("The file's content is damaged.")
    return fd
