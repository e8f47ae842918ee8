"""Processes of a server under test."""

from __future__ import annotations

import os
from pathlib import Path

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("QUINTET_")}
"""Without what tests of the native engine are set to, which others have nothing for."""


def family(process: int) -> set[int]:
    """A process and all that it started, and these started."""
    found, before = {process}, set[int]()
    while found != before:
        before = set(found)
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent in before:
                found.add(int(path.parent.name))
    return found


def command(process: int) -> bytes:
    """Its command line; empty if it is gone."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def engines(process: int) -> list[int]:
    """The engines of the server with this process."""
    return [one for one in family(process) if b"native.worker.child" in command(one)]
