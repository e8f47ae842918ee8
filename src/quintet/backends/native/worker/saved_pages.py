"""Full pages of the KV cache on a disk, so that prompts find what they begin with after a restart too.

One file for each page, named by its digest, in a folder for everything that its bytes depend on::

    FOLDER/secret              what the salts of tenants are made of (``keys/salts.py``), so that their digests are the same the next time
    FOLDER/<kind>/<digest>     magic, CRC-32 of digest and rest, bytes of a hidden row or 0, of keys and values; these; hidden rows, if any

A page is copied between steps and written by a thread of its own; what comes faster than the disk takes it is not kept. What is read is
checked: a file that is damaged, cut or foreign is removed, and its tokens are computed. Whoever can write to the folder can change what a
model says, so it must be ours alone, as that of packs. Why: docs/decisions/0044-prefixes-on-disk.md.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
import time
import zlib
from hashlib import blake2b
from pathlib import Path
from queue import Full, Queue
from typing import NamedTuple

import numpy as np

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.scored_rows import ROOM
from quintet.backends.native.core.types import U8, Runner
from quintet.backends.native.worker.kept_files import KeptFiles
from quintet.config import CacheFolder

FORMAT = 2
"""Of the files; raised with every change."""

QUEUED = 64 << 20
"""Most bytes of pages that wait to be written."""

PAUSE_S = 60.0
"""After a failure nothing is written for so long: the disk may be full."""

CLOSE_S = 5.0
"""What waits when the engine ends gets so long to be written."""

_HEADER = struct.Struct("<8sIIQ")
_MAGIC = b"quintkv1"
_log = logging.getLogger(__name__)


def saved_pages(cache: CacheFolder | None, runner: Runner, fingerprint: str) -> SavedPages | None:
    """As a server's settings have it; ``None``, and a line in the log, where that cannot be."""
    if cache is None or runner.window:
        if cache is not None:
            _log.warning("prefixes are not kept: every layer of this model sees a window of tokens only")
        return None
    try:
        return SavedPages(Path(cache.folder), cache.limit, runner, fingerprint)
    except OSError as error:
        _log.warning("prefixes are not kept: %s", error)
        return None


class _Job(NamedTuple):
    """A page to write."""

    digest: bytes
    data: U8
    rows: U8


class SavedPages:
    """``Saved`` over a folder. Called in the worker's thread; it has one more of its own.

    Args:
        limit: most bytes in the folder, of whatever model.
        fingerprint: of the model and its numbers.

    Raises:
        OSError: the folder cannot be had, or is not to be trusted.
    """

    def __init__(self, folder: Path, limit: int, runner: Runner, fingerprint: str) -> None:
        self._runner, self._row_bytes = runner, runner.row_bytes + ROOM
        self._bytes = _HEADER.size + runner.page_bytes + PAGE * self._row_bytes
        """Of a file with rows."""
        words = (FORMAT, fingerprint, runner.context, runner.page_bytes, self._row_bytes)
        kind = blake2b("\n".join(map(str, words)).encode(), digest_size=16).hexdigest()
        self._folder, self._files = folder, KeptFiles(folder, kind, limit)
        self._waiting: dict[str, bool] = {}
        """Names of files that wait to be written, and whether they have rows."""
        self._queue: Queue[_Job | None] = Queue(max(1, QUEUED // self._bytes))
        self._thread = threading.Thread(target=self._write_all, name="quintet-save", daemon=True)
        self._thread.start()

    def has(self, digest: bytes, *, with_rows: bool) -> bool:
        name = digest.hex()
        waiting, size = self._waiting.get(name), self._files.size(name)
        return (size is not None or waiting is not None) and (not with_rows or bool(waiting) or size == self._bytes)

    def load(self, digest: bytes, page: int) -> U8 | None:
        name = digest.hex()
        raw = self._files.read(name, self._bytes)
        found = self._parse(digest, np.frombuffer(raw, np.uint8)) if raw is not None else None
        if found is None:
            self._files.remove(name)
            return None
        data, rows = found
        self._runner.write_page(page, data)
        return rows

    def offer(self, digest: bytes, page: int, rows: U8 | None) -> None:
        if self._queue.full():
            return
        kept = np.zeros((0, self._row_bytes), np.uint8) if rows is None else rows.copy()
        self._waiting[digest.hex()] = rows is not None
        self._queue.put(_Job(digest, self._runner.read_page(page), kept))

    def close(self) -> None:
        """Write what waits, as far as ``CLOSE_S`` allows."""
        with contextlib.suppress(Full):
            self._queue.put(None, timeout=CLOSE_S)
            self._thread.join(CLOSE_S)

    def _parse(self, digest: bytes, raw: U8) -> tuple[U8, U8] | None:
        """Keys and values, and rows; ``None``: it is no whole page of this model, or another one under this name."""
        if len(raw) < _HEADER.size:
            return None
        magic, crc, row_bytes, size = _HEADER.unpack(raw[: _HEADER.size].tobytes())
        body, rows = raw[_HEADER.size :], PAGE if row_bytes else 0
        if (magic, size) != (_MAGIC, self._runner.page_bytes) or row_bytes not in (0, self._row_bytes):
            return None
        if len(body) != size + rows * row_bytes or zlib.crc32(body.data, zlib.crc32(digest)) != crc:
            return None
        return body[:size], body[size:].reshape(rows, self._row_bytes)

    def _write_all(self) -> None:
        resume = 0.0
        while (job := self._queue.get()) is not None:
            try:
                if time.monotonic() >= resume:
                    self._write(job)
            except OSError as error:
                _log.warning("prefixes are not kept in %s for %g s: %s", self._folder, PAUSE_S, error.strerror or error)
                resume = time.monotonic() + PAUSE_S
            finally:
                self._waiting.pop(job.digest.hex(), None)

    def _write(self, job: _Job) -> None:
        crc = zlib.crc32(job.rows.data, zlib.crc32(job.data.data, zlib.crc32(job.digest)))
        head = _HEADER.pack(_MAGIC, crc, self._row_bytes if len(job.rows) else 0, job.data.size)
        self._files.write(job.digest.hex(), [head, job.data.data, job.rows.reshape(-1).data])
