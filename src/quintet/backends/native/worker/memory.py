"""Memory that is not needed any more goes back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys


def trim() -> None:
    """Give back what only loading needed, and keep what is there now out of the collector's rounds: it stays for good."""
    gc.collect()
    gc.freeze()
    give_back()


def give_back() -> None:
    """Free heap pages, which the allocator would keep."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # glibc's own; musl gives back by itself
        libc.malloc_trim(0)
