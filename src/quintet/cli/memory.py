"""How much memory this machine has."""

from __future__ import annotations

import os
from pathlib import Path


def total() -> int:
    """Bytes of RAM."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available() -> int:
    """Bytes a new program may take without swapping; all of the RAM where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return total()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), total())
