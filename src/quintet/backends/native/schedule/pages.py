"""Pages of the KV cache: who holds them, which can be found again, which goes next. Plain code over values::

               take                    release, not published
        free ---------> used (references > 0) ---------> free
                          |   ^
      release, published  |   | share (a prefix was found)
                          v   |
                          idle ---------> taken again, the least recently used first, when nothing is free

The index goes from a chained digest to a page: digest(page) = hash(digest(page before), its 16 tokens, salt). So equal digests mean equal
tokens from the sequence's beginning, and a look-up is a walk from the first page on; vLLM's prefix cache is made alike. Why:
docs/decisions/0003-scheduling.md.

A page is in exactly one state: *free*; *used* (referenced by block tables or snapshots); *idle* (unreferenced, but findable by
the digest of its contents, until it is the least recently used one and a page is wanted). Full pages are never written again.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np

from quintet.backends.base import Pages
from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.types import I32, U8

GONE = -1
"""In a table: the page that was here was let go, as nobody will read it again."""

_IDS = struct.Struct(f"<{PAGE}i")


class OutOfPagesError(RuntimeError):
    """``take`` was called while nothing was available; ask ``available`` first."""


class BrokenInvariantError(RuntimeError):
    """``check`` found a page that leaked, is held twice, or is in two states."""


def chain(parent: bytes, tokens: Sequence[int], salt: bytes, images: bytes = b"") -> bytes:
    """Digest of a full page that follows the page ``parent`` (empty for the first page).

    Args:
        tokens: the page's ``PAGE`` token ids.
        salt: at most 64 bytes; pages of different salts never match.
        images: what of which images is among its tokens; empty = nothing.
    """
    return blake2b(parent + _IDS.pack(*tokens) + images, digest_size=16, key=salt).digest()


class PagePool:
    """Reference-counted pages numbered from 0, with an index of full pages by content.

    Args:
        total: pages that exist. State grows with the pages ever used, not with this number.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._references: list[int] = []
        self._free: list[int] = []
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._by_digest: dict[bytes, int] = {}
        self._digests: dict[int, bytes] = {}
        self._rows: dict[int, U8] = {}

    @property
    def available(self) -> int:
        """Pages that ``take`` can still hand out."""
        return self.total - len(self._references) + len(self._free) + len(self._idle)

    @property
    def ever_used(self) -> int:
        """Pages that were handed out at least once; they are numbered from 0."""
        return len(self._references)

    @property
    def state(self) -> Pages:
        """How many pages there are, and in which state."""
        idle = len(self._idle)
        return Pages(self.total, PAGE, len(self._references) - len(self._free) - idle, idle)

    def references(self, page: int) -> int:
        """How many tables and snapshots hold ``page``."""
        return self._references[page]

    def take(self) -> int:
        """A page of undefined contents, held once. Freed pages first, then untouched ones, then the oldest idle one.

        Raises:
            OutOfPagesError: every page is in use.
        """
        if self._free:
            page = self._free.pop()
        elif len(self._references) < self.total:
            page = len(self._references)
            self._references.append(0)
        elif self._idle:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
        else:
            raise OutOfPagesError(f"all {self.total} pages are in use")
        self._references[page] = 1
        return page

    def share(self, page: int) -> None:
        """Hold a used or idle page once more."""
        self._idle.pop(page, None)
        self._references[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Let go of ``pages`` in order of position, but for ``GONE`` ones; of those that become idle, the last is evicted first."""
        for page in reversed(pages):
            if page == GONE:
                continue
            self._references[page] -= 1
            if self._references[page] == 0:
                self._retire(page)

    def lookup(self, digest: bytes, *, with_rows: bool) -> int | None:
        """The page with this digest, if there is one (that has hidden rows, if asked for). Changes nothing."""
        page = self._by_digest.get(digest)
        return None if page is None or (with_rows and page not in self._rows) else page

    def find_rows(self, page: int) -> U8 | None:
        """The stored hidden rows of a page, if it has any."""
        return self._rows.get(page)

    def publish(self, page: int, digest: bytes) -> None:
        """Make a full, used page findable. The first page of a digest stays, unless only the new one has rows."""
        known = self._by_digest.get(digest)
        if known is not None:
            if known == page or known in self._rows or page not in self._rows:
                return
            self._forget(known)
            if known in self._idle:
                del self._idle[known]
                self._free.append(known)
        self._by_digest[digest] = page
        self._digests[page] = digest

    def rows(self, page: int) -> U8:
        """The stored hidden rows of a page, uint8 [PAGE, stored bytes]."""
        return self._rows[page]

    def keep_rows(self, page: int, row_bytes: int) -> U8:
        """The page's store for hidden rows, made at the first call; the caller fills it."""
        rows = self._rows.get(page)
        if rows is None:
            rows = self._rows[page] = np.zeros((PAGE, row_bytes), np.uint8)
        return rows

    def drop_rows(self, page: int) -> None:
        """Forget a page's hidden rows (they are incomplete)."""
        self._rows.pop(page, None)

    def shed(self) -> list[int]:
        """Forget everything that could be found again; the pages that nobody holds now, whose memory is of no use to anybody."""
        for page in self._idle:
            self._forget(page)
        self._free += self._idle
        self._idle.clear()
        return list(self._free)

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Verify every invariant against all lists of held pages.

        Raises:
            BrokenInvariantError: naming what is wrong.
        """
        counts = Counter(page for pages in holders for page in pages if page != GONE)
        used = {page for page, count in enumerate(self._references) if count}
        free, idle = set(self._free), set(self._idle)
        _require(counts == Counter({page: self._references[page] for page in used}), "references differ from the tables")
        _require(len(free) == len(self._free), "a page is free twice")
        _require(not (free & idle or free & used or idle & used), "a page is in two states")
        _require(len(free) + len(idle) + len(used) == len(self._references) <= self.total, "pages leaked")
        _require(self._by_digest == {digest: page for page, digest in self._digests.items()}, "the index disagrees with itself")
        _require(idle <= self._digests.keys() and not free & self._digests.keys(), "an idle page cannot be found, or a free one can")
        _require(self._rows.keys() <= used | idle, "a free page has rows")

    def _retire(self, page: int) -> None:
        if page in self._digests:
            self._idle[page] = None
        else:
            self._rows.pop(page, None)
            self._free.append(page)

    def _forget(self, page: int) -> None:
        del self._by_digest[self._digests.pop(page)]
        self._rows.pop(page, None)


class BlockTables:
    """One row of page numbers per running sequence, in one array so that a step's tables are one gather.

    Args:
        slots: most tables open at once.
        width: most pages of one table.
    """

    def __init__(self, slots: int, width: int) -> None:
        self._matrix = np.zeros((slots, width), np.int32)
        self._lengths = [0] * slots
        self._free = list(range(slots - 1, -1, -1))
        self.slots = slots

    def open(self, pages: Sequence[int]) -> int:
        """A new table that lists ``pages``; returns its slot."""
        slot = self._free.pop()
        self._matrix[slot, : len(pages)] = pages
        self._lengths[slot] = len(pages)
        return slot

    def close(self, slot: int) -> list[int]:
        """Give the slot back; returns the pages it listed."""
        pages = self.pages(slot)
        self._lengths[slot] = 0
        self._free.append(slot)
        return pages

    def pages(self, slot: int) -> list[int]:
        """The pages of a table in order of position."""
        pages: list[int] = self._matrix[slot, : self._lengths[slot]].tolist()
        return pages

    def page(self, slot: int, index: int) -> int:
        """The page that holds positions ``index * PAGE`` and on."""
        return int(self._matrix[slot, index])

    def append(self, slot: int, page: int) -> None:
        """Add a page at the end."""
        self._matrix[slot, self._lengths[slot]] = page
        self._lengths[slot] += 1

    def cut(self, slot: int, count: int) -> list[int]:
        """Keep the first ``count`` pages; returns the others."""
        pages = self.pages(slot)[count:]
        self._lengths[slot] = count
        return pages

    def forget(self, slot: int, start: int, stop: int) -> list[int]:
        """Put ``GONE`` in the places from ``start`` to ``stop - 1``; returns the pages that were there."""
        pages: list[int] = self._matrix[slot, start:stop].tolist()
        self._matrix[slot, start:stop] = GONE
        return pages

    def length(self, slot: int) -> int:
        """How many pages a table lists."""
        return self._lengths[slot]

    def replace(self, slot: int, index: int, page: int) -> int:
        """Put ``page`` in the place of another, which is returned."""
        other = int(self._matrix[slot, index])
        self._matrix[slot, index] = page
        return other

    def gather(self, slots: Sequence[int]) -> I32:
        """The tables of ``slots``, int32 [S, P] with P the longest of them (at least 1)."""
        width = max(1, max(self._lengths[slot] for slot in slots))
        return self._matrix[slots, :width]


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BrokenInvariantError(otherwise)
