"""Folders of ours alone: what lies in them goes into the engine's numbers."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""With which everything in such a folder is opened: no symbolic link is followed, and no FIFO waited for."""

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def open_private(folder: Path) -> int:
    """A descriptor of a folder, which is made if need be.

    Raises:
        OSError: it cannot be had, or is not to be trusted.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | FLAGS)
    try:
        require_private(os.fstat(found), folder)
    except PermissionError:
        os.close(found)
        raise
    return found


def require_private(status: os.stat_result, path: Path) -> None:
    """
    Raises:
        PermissionError: it is somebody else's, or others may write it.
    """
    if status.st_uid != os.geteuid() or status.st_mode & _OTHERS:
        raise PermissionError(f"{path} is another user's, or others may write it")
