"""What the draft model has read of each sequence, and the pages that hold it. Plain code over values.

The draft model has a KV cache of its own, of as many pages as the target's. It follows a sequence at a distance: it reads what was drawn
without it when it is asked next, and what it drafted and was not drawn is written over::

    sequence      [ prompt, and what was drawn ............................ ]
    read          [ sure: the sequence's own ............ | guess ... ]             its drafts, which it read to draft on
    next time     [ sure ........................................ | unread  ]      as far as the guess was drawn

Full pages of what is sure can be found by others, under the digests of the target's cache: samples of a prompt, and whoever comes later.
Nothing here is needed for anything but drafts: a sequence that gave its pages up, or has ended, is forgotten, and read again if need be.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.types import I32
from quintet.backends.native.draft.drafter import matching
from quintet.backends.native.schedule.kv import page_digest
from quintet.backends.native.schedule.pages import BlockTables, PagePool
from quintet.backends.native.schedule.sequence import Sequence, State


@dataclass(slots=True, eq=False)
class Reading:
    """How far the draft model has come in a sequence.

    Args:
        slot: its block table.
        computed: positions from 0 on whose keys and values lie in its pages.
        sure: the sequence's length when it was last looked at; positions computed from there on hold ``guess``.
        published: full pages that were offered to others.
    """

    slot: int
    computed: int
    sure: int
    published: int
    guess: list[int] = field(default_factory=list)


class DraftPages:
    """The draft model's pages as sequences use them.

    Args:
        tables: as many as sequences are drafted for at once, as wide as the longest sequence.
    """

    def __init__(self, pool: PagePool, tables: BlockTables) -> None:
        self.pool = pool
        self._tables = tables
        self._readings: dict[Sequence, Reading] = {}

    def unread(self, seq: Sequence) -> int:
        """Tokens of the sequence to read before the next can be drafted, at least 1."""
        reading = self._readings.get(seq)
        if reading is None:
            return seq.length - self._findable(seq, 0) * PAGE
        self._settle(seq, reading)
        return seq.length - reading.computed

    def open(self, seq: Sequence, ahead: int) -> Reading | None:
        """Where the sequence is read, with places for it and so many tokens after it; ``None``: there are too few pages.

        What others have read of the same text is taken over.
        """
        reading = self._readings.get(seq)
        if reading is None:
            reading = self._readings[seq] = Reading(self._tables.open([]), 0, seq.length, 0)
        self._settle(seq, reading)
        self._adopt(seq, reading)
        while self._tables.length(reading.slot) * PAGE < seq.length + ahead:
            if not self.pool.available:
                return None
            self._tables.append(reading.slot, self.pool.take())
        return reading

    def next_page(self, seq: Sequence, reading: Reading) -> bytes:
        """The digest of the page that the sequence's next token to read is in; empty if nobody else could need it."""
        index = reading.computed // PAGE
        return page_digest(seq, index) if (index + 1) * PAGE < seq.length else b""

    def publish(self, seq: Sequence, reading: Reading) -> None:
        """Offer the pages that are full of what is sure."""
        for index in range(reading.published, min(reading.computed, reading.sure) // PAGE):
            self.pool.publish(self._tables.page(reading.slot, index), page_digest(seq, index))
            reading.published = index + 1

    def gather(self, readings: Items[Reading]) -> I32:
        """Their tables, int32 [S, P]."""
        return self._tables.gather([reading.slot for reading in readings])

    def make_room(self, wanted: Collection[Sequence]) -> None:
        """Forget the sequences that do not decode any more, and all but the ``wanted`` if these could want for places."""
        crowded = len(self._readings.keys() | wanted) > self._tables.slots or self.pool.available < len(wanted)
        for seq in [*self._readings]:
            if seq.state is not State.DECODE or (crowded and seq not in wanted):
                self.forget(seq)

    def forget(self, seq: Sequence) -> None:
        """Let go of a sequence's pages; one that has none is ignored."""
        reading = self._readings.pop(seq, None)
        if reading is not None:
            self.pool.release(self._tables.close(reading.slot))

    def shed(self) -> list[int]:
        """Forget all that is kept for others; the pages that nobody holds."""
        return self.pool.shed()

    def check(self) -> None:
        """Verify all invariants.

        Raises:
            BrokenInvariantError: naming what is wrong.
        """
        self.pool.check([self._tables.pages(reading.slot) for reading in self._readings.values()])

    def _settle(self, seq: Sequence, reading: Reading) -> None:
        """What was guessed is the sequence's own as far as it was drawn."""
        drawn = seq.slice(reading.sure, seq.length)
        reading.computed = min(reading.computed, reading.sure + matching(reading.guess, drawn))
        reading.sure, reading.guess = seq.length, []

    def _findable(self, seq: Sequence, index: int) -> int:
        """The first page from ``index`` on that nobody has read, or that holds the sequence's last token."""
        while (index + 1) * PAGE < seq.length and self.pool.lookup(page_digest(seq, index), with_rows=False) is not None:
            index += 1
        return index

    def _adopt(self, seq: Sequence, reading: Reading) -> None:
        if reading.computed % PAGE:
            return
        first = reading.computed // PAGE
        for index in range(first, self._findable(seq, first)):
            page = self.pool.lookup(page_digest(seq, index), with_rows=False)
            assert page is not None, "it was found"
            self.pool.share(page)
            if index < self._tables.length(reading.slot):
                self.pool.release([self._tables.replace(reading.slot, index, page)])
            else:
                self._tables.append(reading.slot, page)
            reading.computed = (index + 1) * PAGE
            reading.published = index + 1
