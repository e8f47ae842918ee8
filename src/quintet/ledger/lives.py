"""Which processes write a ledger now. The kernel knows: each holds a lock on a file of its own, which ends with it however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class Life:
    """A process that writes, until ``end``, or its own end.

    Args:
        file: the ledger's.
        number: of this life.
    """

    def __init__(self, file: Path, number: int) -> None:
        self._path = _path(file, number)
        self._fd = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def end(self) -> None:
        """It writes no more."""
        with contextlib.suppress(OSError):  # a disk that can only be read: without its lock it is known to be over all the same
            self._path.unlink()
        self.drop()

    def drop(self) -> None:
        """Leave what is at the path: it may be another's by now."""
        os.close(self._fd)


def ended(file: Path, number: int) -> bool:
    """Whether a life is surely over. Of another user's, or without a descriptor to look with, that cannot be told."""
    try:
        fd = os.open(_path(file, number), os.O_RDWR)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody has it, or the system has no lock to look with
        return False
    finally:
        os.close(fd)
    return True


def forget(file: Path, number: int) -> None:
    """Take away what a life that is over has left, if that may be done."""
    with contextlib.suppress(OSError):
        _path(file, number).unlink()


def _path(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}-life{number}")
