"""The folder of packs: packed weights that are kept, so that a model is ready sooner the next time.

What is trusted: a folder that is ours and that nobody else may write, and in it files that are ours likewise; no symbolic link is followed.
Whoever can write there as we can, can change the engine's numbers; so could they change the model's file. Everybody else's bytes, and
what a disk has damaged, are noticed by checksums (``pack_directory``). Reasons: docs/decisions/0025-packs.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quintet.backends.native.worker.pack_directory import SUFFIX, Directory, Kind, Source, UnusableError, read, write
from quintet.backends.native.worker.private import FLAGS, open_private, require_private
from quintet.models.files import human

_TEMPORARY = ".tmp"
_UNSEEN = getattr(os, "O_NOATIME", 0)
"""A pack that is looked at for its sources was not used for that; file systems mounted with ``relatime`` tell one read in a day."""
STAMP_NS = 2_000_000_000
"""Stamps are multiples of it: every file system keeps such a time."""


@dataclass(frozen=True, slots=True)
class Pack:
    """An open pack.

    Args:
        file: its descriptor, for reading; whoever has the pack closes it.
        stamped: nobody has written to it since all of it was on the disk.
    """

    name: str
    file: int
    directory: Directory
    stamped: bool


@dataclass(frozen=True, slots=True)
class UnfinishedPack:
    """A pack that is being written.

    Args:
        file: its descriptor.
    """

    file: int
    name: str
    folder: int

    def keep(self, name: str) -> None:
        """Have it take the place of pack ``name``, all at once."""
        os.replace(self.name, name, src_dir_fd=self.folder, dst_dir_fd=self.folder)


class Packs:
    """An open folder.

    Args:
        limit: most bytes of all packs.

    Raises:
        OSError: it cannot be had, or is not to be trusted.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.path, self.limit = folder, limit
        self._folder = open_private(folder)

    def close(self) -> None:
        os.close(self._folder)

    def find(self, kind: Kind, sources: Sequence[Source]) -> tuple[Pack | None, bool]:
        """The pack of these very files, unchanged, if there is one; else whether there is one of files of their sizes."""
        sizes, alike = [source.size for source in sources], False
        for name, _ in self._packs():
            with contextlib.suppress(OSError, UnusableError):
                pack = self.open(name)
                of = pack.directory
                if of.kind == kind and of.settled and of.sources == tuple(sources):
                    return pack, True
                alike |= of.kind == kind and [source.size for source in of.sources] == sizes
                os.close(pack.file)
        return None, alike

    def open(self, name: str) -> Pack:
        """A pack by its name.

        Raises:
            OSError: there is none, or it is not to be trusted.
            UnusableError: it is not a whole one.
        """
        file = os.open(name, os.O_RDONLY | _UNSEEN | FLAGS, dir_fd=self._folder)
        try:
            status = os.fstat(file)
            require_private(status, self.path / name)
            directory = read(file)
        except BaseException:
            os.close(file)
            raise
        return Pack(name, file, directory, status.st_mtime_ns == directory.stamp)

    def used(self, pack: Pack) -> None:
        """It is the one that was used last, from now on."""
        with contextlib.suppress(OSError):
            os.utime(pack.file, ns=(time.time_ns(), os.fstat(pack.file).st_mtime_ns))

    def renew(self, pack: Pack, directory: Directory) -> None:
        """Give a pack another directory for the same data; where that cannot be, the old one stays."""
        with contextlib.suppress(OSError):
            file = os.open(pack.name, os.O_RDWR | FLAGS, dir_fd=self._folder)
            try:
                if os.path.sameopenfile(file, pack.file):
                    write(file, directory)
                    self.settle(file, directory)
            finally:
                os.close(file)

    def settle(self, file: int, directory: Directory) -> None:
        """Wait until all of a pack is on the disk, and stamp it as whole; that is no use of it."""
        os.fsync(file)
        os.utime(file, ns=(os.fstat(file).st_atime_ns, directory.stamp))

    @contextlib.contextmanager
    def begin(self) -> Iterator[UnfinishedPack]:
        """A new file, which is gone when the block ends unless it was kept.

        It is locked meanwhile: one that nobody has locked was left by a process that was killed, and goes (``sweep``).

        Raises:
            OSError: it cannot be written.
        """
        file, name = self._create()
        try:
            yield UnfinishedPack(file, name, self._folder)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._folder)
            os.close(file)

    def _create(self) -> tuple[int, str]:
        while True:
            name = f".{secrets.token_hex(8)}{_TEMPORARY}"
            file = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | FLAGS, 0o600, dir_fd=self._folder)
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:  # else it was swept before it was locked
                return file, name
            os.close(file)

    def drop(self, name: str) -> None:
        """Remove a pack; whoever uses it goes on."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._folder)

    def make_room(self, need: int) -> None:
        """Remove what was not used for longest until so many bytes more fit the limit, leftovers first.

        Raises:
            OSError: they do not fit the limit or the disk.
        """
        self.sweep()
        if need > self.limit:
            raise OSError(f"they take {human(need)}, and --pack-cache-size is {human(self.limit)}")
        there = sorted((status.st_atime_ns, name, status.st_size) for name, status in self._packs())
        total = sum(size for _, _, size in there)
        for _, name, size in there:
            if total + need <= self.limit:
                break
            self.drop(name)
            total -= size
        disk = os.fstatvfs(self._folder)
        free = disk.f_bavail * disk.f_frsize
        if free < need:
            raise OSError(f"they take {human(need)}, and {human(free)} are free in {self.path}")

    def sweep(self) -> None:
        """Remove files of writers that are gone."""
        for name in self._names(_TEMPORARY):
            with contextlib.suppress(OSError):
                file = os.open(name, os.O_RDWR | FLAGS, dir_fd=self._folder)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(name, dir_fd=self._folder)
                finally:
                    os.close(file)

    def _packs(self) -> list[tuple[str, os.stat_result]]:
        found = []
        for name in self._names(SUFFIX):
            with contextlib.suppress(OSError):
                found.append((name, os.stat(name, dir_fd=self._folder, follow_symlinks=False)))
        return found

    def _names(self, end: str) -> list[str]:
        with os.scandir(self._folder) as entries:
            return [entry.name for entry in entries if entry.name.endswith(end)]
