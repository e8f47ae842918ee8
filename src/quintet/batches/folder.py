"""Where files and batches lie on the disk, and whose they are: one server's at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Collection
from pathlib import Path

from quintet.errors import QuintetError

MIN_FREE = 64 * 1024 * 1024
"""Bytes that are left free on the disk: others write there too."""

SWEEP_S = 3600.0
"""Seconds that an upload may take at most, and a batch's files to be written."""

_OURS = re.compile(r"[0-9a-f]{24}\.draft|file-[0-9a-f]{32}")
"""Names that ``draft`` gives, and ids of files."""

_PARTS = re.compile(r"batches\.sqlite(-journal|-shm|-wal)?|lock|files")
"""All that is in a folder, beside the contents."""

_BLANKS = b" \t\r\v\f"
"""With a line break, what ``bytes.strip`` takes away: alone on a line they make it blank."""

_MARK = b"x"
_MARKS = bytes(byte if byte == ord("\n") else ord(_MARK) for byte in range(256))
"""All that is no line break becomes the mark."""


class BatchFolderError(QuintetError):
    """A folder of batches cannot be used."""


class FolderInUseError(BatchFolderError):
    """Another server has it."""


class Folder:
    """A folder that holds a database, the files' contents and a lock.

    Args:
        path: made if it is not there.

    Raises:
        BatchFolderError: it cannot be made, or is open to others.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = path / "files"
        self._lock: int | None = None
        self._opened: tuple[tuple[int, int], ...] | None = None  # the identity of what is used
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)  # for itself: a parent that mkdir makes beside has not the mode
            self._files.mkdir(mode=0o700, exist_ok=True)
            if path.stat().st_mode & 0o022:
                raise BatchFolderError(f"{path} may be written by others; chmod 700 it.")
        except FileExistsError as error:
            raise BatchFolderError(f"{error.filename} is not a folder.") from None
        except OSError as error:
            raise BatchFolderError(f"{path}: {error.strerror}.") from None

    @property
    def database(self) -> Path:
        """Where what is told of files and batches is."""
        return self.path / "batches.sqlite"

    def content(self, id_: str) -> Path:
        """Where a file's content is."""
        return self._files / id_

    def remove(self, id_: str) -> None:
        """Remove a file's content of which nothing is told any more; where that cannot be, ``sweep`` tries it again."""
        with contextlib.suppress(OSError):
            self.content(id_).unlink()

    def take(self) -> bool:
        """Have the batches to oneself, until ``leave`` or the end of the process, however it ends; False if another process has them.

        Raises:
            BatchFolderError: it cannot be locked.
        """
        if self._lock is not None:
            return True
        fd = -1
        try:
            fd = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            if isinstance(error, BlockingIOError):
                return False
            raise BatchFolderError(f"{self.path} cannot be locked: {error.strerror}.") from None
        self._lock = fd
        return True

    def leave(self) -> None:
        """Another process may have them."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remember(self) -> None:
        """What is there now is what is used from here on; see ``lost``.

        Raises:
            BatchFolderError: it does not tell what it is.
        """
        try:
            self._opened = self._identity()
        except OSError as error:
            raise BatchFolderError(f"{self.path}: {error.strerror}.") from None

    def lost(self) -> bool:
        """What was opened is not at its place any more: nobody would find what is written to it, and no new file can be made beside it."""
        try:
            return self._opened is not None and self._identity() != self._opened
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # of a disk that does not answer: nobody can tell
            return False

    def _identity(self) -> tuple[tuple[int, int], ...]:
        """What tells the database and the folder of contents from others that may be put in their places."""
        return tuple((info.st_dev, info.st_ino) for info in map(os.stat, (self.database, self._files)))

    def require_room(self, more: int = 0) -> None:
        """
        Raises:
            OSError: ENOSPC: there is no room for so many bytes more, with what is left free.
        """
        info = os.statvfs(self.path)
        if info.f_bavail * info.f_frsize < more + MIN_FREE:
            raise OSError(errno.ENOSPC, f"no room: {MIN_FREE >> 20} MiB of the disk are always left free", str(self.path))

    def draft(self) -> Draft:
        """A new file, that is not there yet."""
        return Draft(self, self._files / f"{secrets.token_hex(12)}.draft")

    def sweep(self, known: set[str], now: float) -> None:
        """Remove contents that nothing is told of: drafts of processes that were killed, and files that were deleted.

        What cannot be removed stays, such as a directory that a file server or a file system has put there, and whatever has a name that
        no server gives.

        Args:
            now: Unix time in seconds. What was written in the last ``SWEEP_S`` may be another process's that is about to tell.
        """
        for path in self._files.iterdir():
            if path.name not in known and _OURS.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    if now - path.stat().st_mtime > SWEEP_S:
                        path.unlink()


def in_use(path: Path) -> FolderInUseError:
    """What is told where another server has the batches."""
    return FolderInUseError(f"{path} is in use by another server; give this one a --batch-dir of its own.")


def strange(path: Path, known: Collection[str]) -> Path | None:
    """Something that no ``Folder`` has put there: in the folder that is there, or the path itself; ``None`` = nothing.

    Args:
        path: a link to a folder is none: whoever made it wants what is behind it.
        known: names of contents that are no ids of files.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        return path
    contents = path / "files"
    for folder, folders, files in os.walk(path):
        for found in (Path(folder, name) for name in sorted(folders + files)):
            usual = _PARTS if found.parent == path else _OURS
            if not usual.fullmatch(found.name) and not (found.parent == contents and found.name in known):
                return found
    return None


class Draft:
    """A file while it is written. It is there, whole, from ``keep`` on, or not at all."""

    def __init__(self, folder: Folder, path: Path) -> None:
        self._folder, self._path = folder, path
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        self.size = 0
        self.lines = 0
        """Those that are not blank, as ``validate`` reads them; the last one may be without its end."""
        self._in_line = False  # the last line has no end yet, and counts already

    def write(self, data: bytes) -> None:
        """
        Raises:
            OSError: the disk does not take it, or is to be left with some room.
        """
        self._folder.require_room(len(data))
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        self.size += len(data)
        self._count(data)

    def _count(self, data: bytes) -> None:
        """Count the lines that begin in ``data``.

        By searches that take microseconds: many threads write at once, and what each computes in Python holds up everybody.
        """
        marks = (_MARK if self._in_line else b"\n") + data.translate(_MARKS, _BLANKS)
        self.lines += marks.count(b"\n" + _MARK)
        self._in_line = marks.endswith(_MARK)

    def keep(self, id_: str) -> None:
        """It is on the disk when this returns, in the place of what had that id.

        Raises:
            OSError: it could not be written.
        """
        os.fsync(self._fd)
        os.close(self._fd)
        self._fd = -1
        target = self._folder.content(id_)
        self._path.rename(target)
        directory = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def drop(self) -> None:
        """Forget it, if it is not kept."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._path.unlink(missing_ok=True)
