"""Small files in a private folder, bounded in all: what was not used for longest goes. Several processes may share the folder.

Each process knows the files that there were when it last looked, and its own; what another one removed is simply not found. A file appears
all at once, by ``rename``, and its time is that of its last use.

Files and kinds have names of 32 hex digits. What else is in the folder is somebody else's: it does not count, and is never removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from quintet.backends.native.worker.private import FLAGS, open_private, require_private
from quintet.models.files import human

LOOK_SHARE = 16
"""When this share of the limit was written, the folder is looked at again."""

RESERVE = 1 << 28
"""Bytes that are left free on the disk."""

_NAME = re.compile(r"[0-9a-f]{32}")
_PARTIAL = re.compile(r"\.[0-9a-f]{32}\.[0-9a-f]{16}")  # of a file that is being written
_PARTIAL_S = 3600.0  # older ones were left by a process that is gone


class KeptFiles:
    """The files of one kind in a folder that may hold others, which count too.

    Args:
        kind: the name of the folder inside ``folder``.
        limit: most bytes of all files of all kinds.

    Raises:
        OSError: the folder cannot be had, or is not to be trusted.
    """

    def __init__(self, folder: Path, kind: str, limit: int) -> None:
        self._path, self._kind, self._limit = folder, kind, limit
        self._lock = threading.Lock()
        self._at_folder = threading.Lock()  # over the use of a descriptor by who does not write: the writer may replace it
        self._root, self._own = self._opened()
        self._sizes: OrderedDict[tuple[str, str], int] = OrderedDict()  # (kind, name) -> bytes, the least recently used first
        self._total = self._since = 0
        self._look()

    def size(self, name: str) -> int | None:
        """Bytes of a file of this kind; ``None``: there is none, as far as is known."""
        with self._lock:
            return self._sizes.get((self._kind, name))

    def read(self, name: str, most: int) -> bytearray | None:
        """All of a file; ``None``: there is none that can be read, that is to be trusted, and that has no more bytes than ``most``."""
        with contextlib.suppress(OSError):
            with self._at_folder:
                file = os.open(name, os.O_RDONLY | FLAGS, dir_fd=self._own)
            try:
                status = os.fstat(file)
                require_private(status, self._path / self._kind / name)
                data = bytearray(min(status.st_size, most + 1))
                if len(data) <= most and os.readv(file, [data]) == len(data):
                    with contextlib.suppress(OSError):  # of a disk that can only be read
                        os.utime(file, ns=(time.time_ns(),) * 2)
                    self._touch(name)
                    return data
            finally:
                os.close(file)
        return None

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """A new file, in place of one of that name.

        Raises:
            OSError: it cannot be written, or there is no room for it.
        """
        size = sum(len(part) for part in parts)
        self._make_room(size)
        partial = f".{name}.{secrets.token_hex(8)}"  # in containers that share a folder processes may have one number
        try:
            file = self._create(partial)
        except FileNotFoundError:  # the folder was removed
            self._reopen()
            file = self._create(partial)
        try:
            if os.writev(file, parts) != size:
                raise OSError("the disk is full")
            os.rename(partial, name, src_dir_fd=self._own, dst_dir_fd=self._own)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(partial, dir_fd=self._own)
            raise
        finally:
            os.close(file)
        self._since += size
        with self._lock:
            self._total += size - self._sizes.pop((self._kind, name), 0)
            self._sizes[self._kind, name] = size

    def remove(self, name: str) -> None:
        """It is of no use."""
        with self._at_folder:
            self._remove(self._kind, name)

    def _create(self, name: str) -> int:
        return os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | FLAGS, 0o600, dir_fd=self._own)

    def _opened(self) -> tuple[int, int]:
        """Descriptors of the folder and of that of the kind, which are made if need be."""
        root = open_private(self._path)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._kind, 0o700, dir_fd=root)
            return root, os.open(self._kind, os.O_RDONLY | os.O_DIRECTORY | FLAGS, dir_fd=root)
        except OSError:
            os.close(root)
            raise

    def _reopen(self) -> None:
        """Go on in the folder that is at the path now."""
        found = self._opened()
        with self._at_folder:
            before = self._root, self._own
            self._root, self._own = found
            for folder in before:
                os.close(folder)
        self._look()

    def _remove(self, kind: str, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(f"{kind}/{name}", dir_fd=self._root)
        with self._lock:
            self._total -= self._sizes.pop((kind, name), 0)

    def _touch(self, name: str) -> None:
        with self._lock, contextlib.suppress(KeyError):
            self._sizes.move_to_end((self._kind, name))

    def _make_room(self, need: int) -> None:
        if self._since > self._limit // LOOK_SHARE:
            self._look()
        if need > self._limit:
            raise OSError(f"{human(need)} are more than the limit of {human(self._limit)}")
        while self._total + need > self._limit:
            with self._lock:
                oldest = next(iter(self._sizes))
            self._remove(*oldest)
        disk = os.fstatvfs(self._root)
        if disk.f_bavail * disk.f_frsize < need + RESERVE:
            raise OSError(f"less than {human(RESERVE)} are free in {self._path}")

    def _look(self) -> None:
        """At all files of all kinds."""
        found, now = list[tuple[int, tuple[str, str], int]](), time.time()
        for kind in filter(_NAME.fullmatch, _names(self._root)):
            with contextlib.suppress(OSError):
                folder = os.open(kind, os.O_RDONLY | os.O_DIRECTORY | FLAGS, dir_fd=self._root)
                try:
                    for name in _names(folder):
                        with contextlib.suppress(FileNotFoundError):  # another process removed it meanwhile
                            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                            if _PARTIAL.fullmatch(name):
                                if now - status.st_mtime > _PARTIAL_S:
                                    os.unlink(name, dir_fd=folder)
                            elif _NAME.fullmatch(name) and stat.S_ISREG(status.st_mode):
                                found.append((status.st_mtime_ns, (kind, name), status.st_size))
                finally:
                    os.close(folder)
        with self._lock:
            self._sizes = OrderedDict((key, size) for _, key, size in sorted(found))
            self._total = sum(self._sizes.values())
        self._since = 0


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]
