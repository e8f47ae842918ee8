"""Keys in a text file, one a line, and what any file of keys must be."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from pathlib import Path

from quintet.errors import QuintetError
from quintet.keys.key import Key

_LACKS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""The process or the machine lacks descriptors or memory."""

_WAY_OUT = "write keys into it, one a line, and chmod 600 it"
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")


class KeyFileError(QuintetError):
    """A file of keys is missing, unsafe or malformed. The text never holds what is in it."""


class BusyError(KeyFileError):
    """Somebody is changing it right now, or nothing can be opened now: what it held before is still believed."""


class KeyFile:
    """Keys, plain or as ``sha256:HEX``, one a line; empty lines and lines with ``#`` first are skipped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stamp(self) -> tuple[int, ...]:
        """Differs when the file has changed.

        Raises:
            KeyFileError: it cannot be looked at.
        """
        info = look(self.path, _WAY_OUT)
        return info.st_mtime_ns, info.st_size, info.st_ino, info.st_mode

    def read(self) -> list[Key]:
        """All keys.

        Raises:
            KeyFileError: not a readable file, readable or writable by everybody, no key in it, or a line that is no key.
        """
        check_private(self.path, _WAY_OUT)
        try:
            text = self.path.read_text(encoding="ascii")
        except UnicodeDecodeError:
            raise KeyFileError(f"{self.path}: an API key must be ASCII") from None
        except OSError as error:
            raise unreadable(self.path, error) from None
        lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
        keys = [Key(self._digest(number, line)) for number, line in lines if line and not line.startswith("#")]
        if not keys:
            raise KeyFileError(f"{self.path} holds no API key; {_WAY_OUT}")
        return keys

    def _digest(self, number: int, line: str) -> bytes:
        if found := _HASHED.fullmatch(line):
            return bytes.fromhex(found[1])
        if line.startswith("sha256:") or " " in line or not line.isprintable():
            raise KeyFileError(f"{self.path}, line {number}: must be a key without spaces, or sha256: and 64 hex digits")
        return hashlib.sha256(line.encode()).digest()


def look(path: Path, way_out: str) -> os.stat_result:
    """
    Args:
        way_out: what makes such a file, where there is none.

    Raises:
        KeyFileError: there is nothing, or nothing that may be looked at.
    """
    try:
        return path.stat()
    except FileNotFoundError as error:
        raise KeyFileError(f"{path}: {error.strerror}; {way_out}") from None
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> KeyFileError:
    """What is told of a file that the system does not give; a ``BusyError`` where that is no fault of the file's."""
    return (BusyError if error.errno in _LACKS else KeyFileError)(f"{path}: {error.strerror}")


def check_private(path: Path, way_out: str) -> None:
    """
    Args:
        way_out: see ``look``.

    Raises:
        KeyFileError: not a file, or one that everybody can read, others can write or we cannot read.
    """
    info = look(path, way_out)
    if not stat.S_ISREG(info.st_mode):
        raise KeyFileError(f"{path} is not a file")
    if os.name == "posix" and info.st_mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        raise KeyFileError(f"{path} may be read by everybody or written by others; chmod 600 it")
    if not os.access(path, os.R_OK):
        raise KeyFileError(f"{path}: {os.strerror(errno.EACCES)}; chown it to the user who runs this")
