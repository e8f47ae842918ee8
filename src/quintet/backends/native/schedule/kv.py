"""Which pages each sequence holds: admission through the prefix cache, growth, forks, release. Plain code over values.

Paged attention: a sequence's keys and values lie in pages of 16 positions, wherever there was one free; its block table lists them in
order. Pages that begin alike are shared, and the one that a sequence writes to is its own (copy on write)::

    prompt of A and B     [The quick brown .. | fox jumps over .. | the la]
    block table of A      [ 7                 | 2                 | 9 ]      page 9 is copied to 4 when B, its fork, draws
    block table of B      [ 7                 | 2                 | 4 ]

A full page is published under the digest of all tokens up to its end (``pages.chain``), so the next prompt that begins with them finds
it. At least one token is always left to compute, as nothing can be drawn from a page. A page may also keep its hidden rows: then an
``echo`` with log-probabilities is served from the cache too (``core/scored_rows``). Why: docs/decisions/0003-scheduling.md.

Where every layer of a model sees a window of tokens only, a sequence lets go of the pages before it as it goes on, and takes pages as it
needs them, so that it holds a window and a step's worth, however long it is::

    block table of A      [ gone              | 2                 | 4 ]      page 7 is found by others as long as nobody wants its place

A prompt that is found in the cache needs its last window there, no more. Why: docs/decisions/0027-windows.md.

Full pages may also be kept on a disk (``saved``): what a prompt finds there is brought back into the prefix cache before it is admitted,
and from then on is like any other page that nobody holds. Why: docs/decisions/0044-prefixes-on-disk.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.scored_rows import ROOM
from quintet.backends.native.core.types import U8
from quintet.backends.native.schedule.pages import GONE, BlockTables, BrokenInvariantError, PagePool, chain
from quintet.backends.native.schedule.saved import Saved
from quintet.backends.native.schedule.sequence import Sequence, Snapshot, State


class KvCache:
    """The page pool as sequences use it.

    Args:
        row_bytes: bytes of one hidden row, to which the stores of pages add what is known of it.
        window: tokens that a token sees in any layer, itself the last; 0 = all before it.
        step: most tokens that a sequence computes at once.
        saved: where full pages are kept beyond this engine's life; ``None`` = nowhere. With a window none are.
    """

    def __init__(
        self, pool: PagePool, tables: BlockTables, row_bytes: int, window: int = 0, step: int = 0, saved: Saved | None = None
    ) -> None:
        self.pool = pool
        self.tables = tables
        self._saved = None if window else saved
        self._stored_bytes = row_bytes + ROOM
        self._window = window
        self._most = min(pool.total, -(-(window + step) // PAGE) + 1) if window else pool.total  # pages of a sequence at once

    def restore(self, seq: Sequence, most: int) -> tuple[int, bool]:
        """Bring kept pages with the sequence's first tokens back into the prefix cache, at most so many; ``match`` finds them there.

        Returns:
            How many may still be read in this step, and whether there are more: then come again, after a step of those who run, if any do.
        """
        saved, scoring, held = self._saved, seq.group.scoring, list[int]()
        if saved is None or seq.restored:
            return most, False
        try:
            for index in range(_shareable(seq)):
                digest = page_digest(seq, index)
                page = self.pool.lookup(digest, with_rows=scoring)
                if page is None:
                    if not saved.has(digest, with_rows=scoring) or not self.pool.available:
                        break
                    if not most:
                        return 0, True
                    page, most = self._load(saved, digest), most - 1
                    if page is None:
                        break
                else:
                    self.pool.share(page)  # else it might have to go for those after it
                held.append(page)
        finally:
            self.pool.release(held)
        seq.restored = True
        return most, False

    def _load(self, saved: Saved, digest: bytes) -> int | None:
        page = self.pool.take()
        rows = saved.load(digest, page)
        if rows is None:
            self.pool.release([page])
            return None
        if len(rows):
            self.pool.keep_rows(page, self._stored_bytes)[:] = rows
        self.pool.publish(page, digest)
        return page

    def match(self, seq: Sequence) -> list[int]:
        """Cached pages with the sequence's first tokens, ``GONE`` where none is needed; one that will draw has a token left to compute.

        Changes nothing but memoised digests; valid until the pool changes. While prompt log-probabilities are wanted, only pages
        with hidden rows match.
        """
        pages: list[int] = []
        count = in_a_row = 0  # pages that can be taken; pages up to this one that were found, without a gap
        for index in range(_shareable(seq)):
            page = self.pool.lookup(page_digest(seq, index), with_rows=seq.group.scoring)
            if page is None and not self._window:
                break
            pages.append(GONE if page is None else page)
            in_a_row = 0 if page is None else in_a_row + 1
            needed = index + 1 - self._first_needed(seq, (index + 1) * PAGE)
            if in_a_row >= needed and (not self._window or needed < self._most):  # with a window, a page must be left for what is computed
                count = index + 1
        first = self._first_needed(seq, count * PAGE)
        return [GONE] * first + pages[first:count]

    def adopt(self, seq: Sequence) -> int:
        """Pages with the sequence's next tokens that were computed for others meanwhile take the place of its own.

        Returns:
            How many tokens they hold.
        """
        before = seq.computed
        while (digest := self.next_page(seq)) and seq.computed % PAGE == 0:
            page, index = self.pool.lookup(digest, with_rows=seq.group.scoring), seq.computed // PAGE
            if page is None or (index == self.tables.length(seq.slot) and index - seq.gone >= self._most):
                break
            self.pool.share(page)
            if index < self.tables.length(seq.slot):
                self.pool.release([self.tables.replace(seq.slot, index, page)])
            else:
                self.tables.append(seq.slot, page)
            seq.computed += PAGE
            seq.published = seq.computed // PAGE
            self.let_go(seq)
        if seq.computed > before:
            seq.page = self.tables.page(seq.slot, self.tables.length(seq.slot) - 1)
        return seq.computed - before

    def next_page(self, seq: Sequence) -> bytes:
        """The digest of the page that holds the sequence's next token to compute; empty if it cannot come from the cache."""
        index = seq.computed // PAGE
        return page_digest(seq, index) if index < _shareable(seq) else b""

    def cost(self, seq: Sequence, matched: list[int]) -> int:
        """Pages by which ``available`` drops if the sequence is admitted with these cached pages."""
        idle = sum(page != GONE and self.pool.references(page) == 0 for page in matched)
        return self._new(seq, matched) + idle

    def admit(self, seq: Sequence, matched: list[int]) -> None:
        """Open the sequence's table over its cached pages and new ones for all tokens so far, or those it may hold. Ask ``cost`` first."""
        new = self._new(seq, matched)
        self._share(matched)
        self._open(seq, [*matched, *(self.pool.take() for _ in range(new))], len(matched) * PAGE)

    def fork(self, seq: Sequence, parent: Sequence) -> None:
        """Open the sequence's table over its parent's pages, which hold the whole prompt."""
        self._fork(seq, self.tables.pages(parent.slot), parent.digests)

    def fork_snapshot(self, seq: Sequence, snapshot: Snapshot) -> None:
        """Open the sequence's table over the snapshot's pages."""
        self._fork(seq, list(snapshot.pages), snapshot.digests)

    def snapshot(self, parent: Sequence, row: U8) -> Snapshot:
        """Hold the pages of a sequence that has just computed its prompt."""
        pages = self.tables.pages(parent.slot)
        self._share(pages)
        return Snapshot(tuple(pages), row.copy(), tuple(parent.digests))

    def reserve(self, seq: Sequence, count: int) -> int:
        """Make places for the next tokens of one that prefills, as far as pages are available and it may hold them.

        Returns:
            How many there are, ``count`` at most. Without a window there are places for all from the beginning.
        """
        self.let_go(seq)
        wanted = min(-(-(seq.computed + count) // PAGE), seq.gone + self._most) if self._window else 0
        while self.tables.length(seq.slot) < wanted and self.pool.available:
            seq.page = self.pool.take()
            self.tables.append(seq.slot, seq.page)
        return min(count, self.tables.length(seq.slot) * PAGE - seq.computed)

    def let_go(self, seq: Sequence) -> None:
        """Let go of the pages that no token to come sees, and of which no hidden row is wanted."""
        first = self._first_needed(seq, seq.computed)
        if first > seq.gone:
            self.pool.release(self.tables.forget(seq.slot, seq.gone, first))
            seq.gone = first

    def writable(self, seq: Sequence) -> bool:
        """The next token's place exists and is the sequence's own."""
        return seq.computed % PAGE != 0 and self.pool.references(seq.page) == 1

    def grow(self, seq: Sequence, copies: list[tuple[int, int]]) -> bool:
        """Make the next token's place writable: a new page, or a copy of a shared last one (added to ``copies``).

        Returns:
            False, with nothing changed, if that needs a page and none is available.
        """
        if self.writable(seq):
            return True
        if self.tables.length(seq.slot) * PAGE > seq.computed and not seq.computed % PAGE:
            seq.page = self.tables.page(seq.slot, seq.computed // PAGE)  # it was made ahead
            return True
        if not self.pool.available:
            return False
        page = self.pool.take()
        if seq.computed % PAGE:
            copies.append((seq.page, page))
            self.pool.release([self.tables.replace(seq.slot, self.tables.length(seq.slot) - 1, page)])
        else:
            self.tables.append(seq.slot, page)
        seq.page = page
        return True

    def grow_ahead(self, seq: Sequence) -> None:
        """A place for the token after the next one, whose own is writable: if need be a new page, which must be available."""
        if self.tables.length(seq.slot) * PAGE == seq.computed + 1:
            self.tables.append(seq.slot, self.pool.take())

    def extend(self, seq: Sequence, count: int) -> int:
        """Make places after the next token's, which is writable; ``trim`` takes back those that were not used.

        Returns:
            How many there are, ``count`` or as many as pages are available.
        """
        room = -(seq.computed + 1) % PAGE
        while room < count and self.pool.available:
            self.tables.append(seq.slot, self.pool.take())
            room += PAGE
        return min(room, count)

    def trim(self, seq: Sequence) -> None:
        """Let go of pages that hold none of the sequence's positions."""
        kept = -(-seq.computed // PAGE)
        if self.tables.length(seq.slot) > kept:
            self.pool.release(self.tables.cut(seq.slot, kept))
        seq.page = self.tables.page(seq.slot, kept - 1)

    def publish(self, seq: Sequence) -> None:
        """Offer the pages that have become full to the prefix cache, and let go of those that are needed no more."""
        for index in range(seq.published, seq.computed // PAGE):
            page = self.tables.page(seq.slot, index)
            if not seq.group.scoring:
                self.pool.drop_rows(page)  # its last were computed after the echo, when none are stored any more
            digest = page_digest(seq, index)
            self.pool.publish(page, digest)
            rows = self.pool.find_rows(page)
            if self._saved is not None and not self._saved.has(digest, with_rows=rows is not None):
                self._saved.offer(digest, page, rows)
            seq.published = index + 1
        self.let_go(seq)

    def release(self, seq: Sequence) -> None:
        """Close the sequence's table and let go of its pages."""
        self.pool.release(self.tables.close(seq.slot))
        seq.slot = seq.page = -1
        seq.computed = seq.published = seq.gone = 0

    def stores(self, seq: Sequence, start: int, stop: int) -> list[U8]:
        """Where the hidden rows of the positions from ``start`` to ``stop - 1`` belong: views, page by page."""
        return [self._rows(seq, index, keep=True)[low:high] for index, low, high in _spans(start, stop)]

    def rows(self, seq: Sequence, start: int, stop: int) -> list[U8]:
        """The stored hidden rows of the positions from ``start`` to ``stop - 1``: views, page by page."""
        return [self._rows(seq, index, keep=False)[low:high] for index, low, high in _spans(start, stop)]

    def check(self, running: Iterable[Sequence], snapshots: Iterable[Snapshot]) -> None:
        """Verify the pool against everything that holds pages.

        Raises:
            BrokenInvariantError: naming what is wrong.
        """
        tables = {seq: self.tables.pages(seq.slot) for seq in running}
        self.pool.check([*tables.values(), *(snapshot.pages for snapshot in snapshots)])
        for seq, pages in tables.items():
            gone = pages.count(GONE)
            if gone != seq.gone or GONE in pages[gone:] or gone > self._first_needed(seq, seq.computed):
                raise BrokenInvariantError("a sequence let go of a page that it needs")
            least, most = -(-seq.computed // PAGE), -(-(seq.computed + 2) // PAGE)  # with places for a step that runs, and the next
            if seq.state is State.DECODE and not (least <= len(pages) <= most and seq.page in pages[least - 1 :]):
                raise BrokenInvariantError("a sequence holds other pages than its tokens need")

    def _first_needed(self, seq: Sequence, computed: int) -> int:
        """The first page that is needed once so many positions are computed."""
        if not self._window:
            return 0
        first = max(0, computed + 1 - self._window) // PAGE
        return min(first, max(0, seq.group.echoed - 1) // PAGE) if seq.group.scoring else first

    def _new(self, seq: Sequence, matched: list[int]) -> int:
        """Pages that an admitted sequence takes beside the cached ones; more come with ``reserve``."""
        held = len(matched) - matched.count(GONE)
        return min(-(-seq.goal // PAGE) - len(matched), self._most - held)

    def _share(self, pages: Iterable[int]) -> None:
        for page in pages:
            if page != GONE:
                self.pool.share(page)

    def _open(self, seq: Sequence, pages: list[int], computed: int) -> None:
        seq.slot = self.tables.open(pages)
        seq.page = pages[-1] if pages else -1
        seq.gone = pages.count(GONE)
        seq.computed = computed
        seq.published = computed // PAGE

    def _fork(self, seq: Sequence, pages: list[int], digests: Iterable[bytes]) -> None:
        self._share(pages)
        self._open(seq, pages, len(seq.group.prompt))
        seq.digests = list(digests)

    def _rows(self, seq: Sequence, index: int, *, keep: bool) -> U8:
        page = self.tables.page(seq.slot, index)
        return self.pool.keep_rows(page, self._stored_bytes) if keep else self.pool.rows(page)


def page_digest(seq: Sequence, index: int) -> bytes:
    """Of the sequence's tokens up to the end of a full page, and whatever else the page can be shared by."""
    digests = seq.digests
    while len(digests) <= index:
        start = len(digests) * PAGE
        images = seq.group.images
        extra = images.identity(start, start + PAGE) if images else b""
        digests.append(chain(digests[-1] if digests else b"", seq.slice(start, start + PAGE), seq.group.salt, extra))
    return digests[index]


def _shareable(seq: Sequence) -> int:
    """Pages of a sequence that may come from the cache: one that will draw has a token left to compute."""
    return (seq.goal - 1 if seq.max_tokens else seq.goal) // PAGE


def _spans(start: int, stop: int) -> list[tuple[int, int, int]]:
    """``(page index, first, last + 1 inside the page)`` of the positions from ``start`` to ``stop - 1``."""
    first, last = start // PAGE, -(-stop // PAGE)
    spans = [(index, max(start - index * PAGE, 0), min(stop - index * PAGE, PAGE)) for index in range(first, last)]
    return spans if start < stop else []
