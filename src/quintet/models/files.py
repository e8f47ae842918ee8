"""Model files on this machine: where they lie, and the checks every source shares."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quintet.errors import ModelError


class Report(Protocol):
    """Where a fetch tells people what it does."""

    def note(self, line: str) -> None:
        """One finished sentence."""
        ...

    def progress(self, done: int, total: int) -> None:
        """``done`` of ``total`` bytes have arrived."""
        ...


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model file on this machine.

    Args:
        reference: what brings it back: ``smollm2``, ``hf:user/repo:file`` or the path.
        name: the name it is served under unless the user says another.
        size: bytes of the file.
    """

    reference: str
    name: str
    path: Path
    size: int


def cache_dir() -> Path:
    """``$QUINTET_CACHE``, else ``quintet/models`` in the XDG cache."""
    if own := os.environ.get("QUINTET_CACHE"):
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".cache"  # the XDG rule: a relative value is ignored
    return base / "quintet" / "models"


def sha256(path: Path) -> str:
    """Hex digest of the whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def human(size: int) -> str:
    """A byte count for people, in powers of ten, e.g. ``98.4 MB``."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit in ("B", "kB") else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def check_space(folder: Path, need: int) -> None:
    """Refuse a download that cannot fit.

    Raises:
        ModelError: fewer than ``need`` bytes are free where ``folder`` is or will be.
    """
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if free < need:
        raise ModelError(f"not enough disk space in {folder}: the download needs {human(need)}, {human(free)} are free.")


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's errors about ``path`` into one clear line.

    Raises:
        ModelError: instead of ``OSError``.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ModelError(f"the disk is full: {path} could not be written; free some space and try again.") from error
        raise ModelError(f"cannot use {path}: {error.strerror or error}.") from error


def file_name(path: Path) -> str:
    """The file's name, on one line whatever it is."""
    return path.name if path.name.isprintable() else ascii(path.name)


class Map:
    """A file of a model, mapped into memory for reading; it stays mapped as long as a view of it is there.

    Args:
        least: bytes below which it cannot be a model's.

    Raises:
        ModelError: not a regular file, not readable, or too short.
    """

    def __init__(self, path: Path, least: int) -> None:
        name = file_name(path)
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ModelError(f"{name}: is not a regular file.")
                if status.st_size < least:
                    raise ModelError(f"{name}: has only {status.st_size} bytes: it is no model file, or a download was cut short.")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"{name}: cannot be read: {error.strerror or error}.") from error
        self.view = memoryview(self._map)

    def forget(self) -> None:
        """Take what was read out of this process's memory; it is read from the system's cache, or the disk, when asked for again."""
        self._map.madvise(mmap.MADV_DONTNEED)
