"""How much of this process's heap is in use, and giving back what is not: glibc's. Elsewhere nothing is known, nor need be given."""

from __future__ import annotations

import ctypes
import sys


class _Mallinfo(ctypes.Structure):
    """``struct mallinfo2`` of malloc.h, glibc 2.33 and later."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_mallinfo = getattr(_libc, "mallinfo2", None)
if _mallinfo is not None:
    _mallinfo.restype = _Mallinfo


def in_use() -> int:
    """Bytes that were allocated and not freed, by all threads; 0 where nobody knows. Takes a microsecond or two."""
    if _mallinfo is None:
        return 0
    told = _mallinfo()
    return int(told.uordblks + told.hblkhd)


def give_back() -> None:
    """Give free pages to the system; takes milliseconds on a large heap."""
    if (trim := getattr(_libc, "malloc_trim", None)) is not None:  # glibc's own; musl gives back by itself
        trim(0)
