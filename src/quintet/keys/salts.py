"""A secret that outlives the process, of which the salts of keys' prefixes are made where these are kept on a disk."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

SIZE = 32


def lasting_secret(folder: Path) -> bytes:
    """The secret of a folder, which is made, and so is the folder, if there is none yet; several processes get the same.

    Raises:
        OSError: it cannot be had.
        PermissionError: others may read it.
        ValueError: it is no file, or not as it was written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "secret"
    if not path.exists():
        partial = folder / f".secret.{secrets.token_hex(8)}"  # in containers that share a folder each process may be number 1
        with os.fdopen(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            try:
                file.write(secrets.token_bytes(SIZE))
                file.flush()
                os.fsync(file.fileno())
                with contextlib.suppress(FileExistsError):  # another process was first
                    os.link(partial, path)
            finally:
                partial.unlink()
    found = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path} is not a file")
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(f"{path} is another user's, or others may read it")
        secret = os.read(found, SIZE + 1)
    finally:
        os.close(found)
    if len(secret) != SIZE:
        raise ValueError(f"{path} must have {SIZE} bytes, has {len(secret)}: remove it, and all keys' prefixes begin anew")
    return secret
