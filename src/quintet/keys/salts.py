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
        ValueError: the file is not as it was written.
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
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(f"{path} is another user's, or others may read it")
        secret = file.read(SIZE + 1)
    if len(secret) != SIZE:
        raise ValueError(f"{path} must have {SIZE} bytes, has {len(secret)}")
    return secret
