"""Files as memory."""

from __future__ import annotations

import contextlib
import mmap
import re
import sys
from pathlib import Path

import numpy as np

from quintet.backends.native.core.types import U8


def mapped(file: int, size: int, *, whole: bool) -> U8:
    """The first ``size`` bytes of a file: read-only, shared with every process that maps it, and mapped as long as somebody looks at them.

    Args:
        whole: all of it will be read, and stay: by huge pages. Else no more comes in than what is read.
    """
    pages = mmap.mmap(file, size, access=mmap.ACCESS_READ)
    if whole:
        with contextlib.suppress(AttributeError, OSError):  # what cannot be had is not needed
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def on_huge_pages(data: U8) -> float:
    """Share of a mapped file's memory that is mapped by huge pages; 1 where the system does not say, or has none."""
    address, inside, sizes = data.ctypes.data, False, {"Size": 0, "FilePmdMapped": 0}
    if sys.platform != "linux":
        return 1.0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) < address + data.size and address < int(found[2], 16)
        elif inside and (name := line.partition(":")[0]) in sizes:
            sizes[name] += int(line.split()[1])
    return sizes["FilePmdMapped"] / sizes["Size"] if sizes["Size"] else 1.0
