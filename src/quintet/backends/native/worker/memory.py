"""Memory that was needed for loading only goes back to the system."""

from __future__ import annotations

import gc

from quintet.guides import heap


def trim() -> None:
    """Give free heap pages back, and keep what is there now out of the collector's rounds: it stays for good."""
    gc.collect()
    gc.freeze()
    heap.give_back()
