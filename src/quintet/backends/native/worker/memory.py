"""Memory that was needed for loading only goes back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys


def trim() -> None:
    """Give free heap pages back, and keep what is there now out of the collector's rounds: it stays for good."""
    gc.collect()
    gc.freeze()
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # glibc's own; musl gives back by itself
        libc.malloc_trim(0)
