"""Memory that is not needed any more goes back to the system."""

from __future__ import annotations

import gc

from quintet.guides import heap


def trim() -> None:
    """Give back what only loading needed, and keep what is there now out of the collector's rounds: it stays for long."""
    gc.unfreeze()  # not for good: of a model that was unloaded since the last time, nobody else would collect what is left
    gc.collect()
    gc.freeze()
    heap.give_back()
