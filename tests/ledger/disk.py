"""A disk that is full, broken or slow when it is told to, under a real process: ``disk.c``, preloaded."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

SOURCE = Path(__file__).with_name("disk.c")

needs_disk = pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="preloads a library that cc makes")


@cache
def _library() -> Path:
    made = Path(mkdtemp()) / "disk.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(SOURCE), "-ldl"], check=True)
    return made


class Disk:
    """Under the files whose path holds a text.

    Args:
        folder: for its own file.
    """

    def __init__(self, folder: Path, files: str) -> None:
        self._says, self._files = folder / "disk-says", files

    def environment(self, kills: int = 0) -> dict[str, str]:
        """What a process needs to have this disk; it dies at its ``kills``-th call, with half of that done."""
        return {"LD_PRELOAD": str(_library()), "DISK_FILES": self._files, "DISK_SAYS": str(self._says), "DISK_KILLS": str(kills)}

    def fails(self, number: int = errno.ENOSPC, *, syncs: bool = False) -> None:
        """From now on: all writes and synchronisations, or the latter alone."""
        self._say(f"sync {number}" if syncs else str(number))

    def slow(self, ms: int) -> None:
        """Each synchronisation takes so long."""
        self._say(f"slow {ms}")

    def works(self) -> None:
        """Again."""
        self._says.unlink(missing_ok=True)

    def _say(self, text: str) -> None:
        fresh = self._says.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._says)
