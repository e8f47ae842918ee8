"""Memory that is not needed any more goes back to the system."""

from __future__ import annotations

import gc

from quintet.guides import heap


def trim() -> None:
    """Give back what only loading needed, and keep what is there now out of the collector's rounds: it stays for good."""
    gc.collect()
    gc.freeze()
    heap.give_back()
