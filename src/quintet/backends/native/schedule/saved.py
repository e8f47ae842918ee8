"""Pages that outlive the engine, as the scheduler sees them. What keeps them is ``worker/saved_pages.py``; here is the seam alone."""

from __future__ import annotations

from typing import Protocol

from quintet.backends.native.core.types import U8


class Saved(Protocol):
    """Full pages by their digest (``pages.chain``). Called between steps only."""

    def has(self, digest: bytes, *, with_rows: bool) -> bool:
        """Whether there is one (that has hidden rows, if asked for)."""
        ...

    def load(self, digest: bytes, page: int) -> U8 | None:
        """Fill a page of the KV cache with it.

        Returns:
            Its hidden rows, uint8 [0 or PAGE, stored bytes]; ``None``: it cannot be had any more, and the page holds nothing.
        """
        ...

    def offer(self, digest: bytes, page: int, rows: U8 | None) -> None:
        """A page that is full. It is copied now, or not at all if there is too much to write."""
        ...
