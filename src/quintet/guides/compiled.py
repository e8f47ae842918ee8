"""Compiled guides, kept for the requests to come within a bound on their bytes; compiled in a thread, beside the steps of the engine.

A guide's text says little of what it takes: some kilobytes of schema are megabytes of grammar, and its lexer grows with each mask, for
states are made when they are met. The library does not tell its size. So the heap is looked at before and after whatever makes a
guide grow, and the difference is the guide's::

    compile(grammar)  |  mask, mask, ...          bytes = what the heap grew by meanwhile, at least what guides of such a text take
    ------------------+--------------------
    the others of the process allocate too: what they take is charged to the guide, which then goes a little too early

What was used last stays; a guide that a sequence follows is never dropped, and one that is forgotten counts until nobody follows it. Should
all that are followed exceed twice the bound, those that grew largest are not followed any further.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from weakref import WeakSet

from quintet.guides import heap
from quintet.guides.matcher import Compiler, Matcher

CACHE_BYTES = 256 << 20
"""Bound on the compiled guides that are kept: a hundred of 32 KB, or two thousand small ones."""

SHARE = 64
"""One that has more than this part of the bound is large: as many can run at once."""

LEAST_BYTES = 64 << 10
BYTES_PER_CHARACTER = 80
"""What a guide takes at least, where the heap was not seen to grow: as others were freeing, or where nobody knows. Measured: 80 to 100
times the text of schemas of 2 to 32 KB, 80 KB of small ones, and 30 KB of a regular expression."""

EXACT, EVERY = 64, 32
"""To look at the heap takes longer than most masks where much of it is free (70 µs). A guide grows by its first masks most of all:
these are looked at, and of the later ones each of so many, which stands for all."""

MOST_BYTES = 256 << 10
"""Most that is believed of a mask which stands for others: more is what other threads took or freed meanwhile."""

TRIM_BYTES = 32 << 20
"""When so much was dropped the heap's free pages are given back."""


@dataclass(slots=True, eq=False)
class _Kept:
    """A compiled guide.

    Args:
        grown: bytes that the heap grew by.
        least: what it takes at least.
        users: matchers of sequences that follow it; they share what grows.
        masks: how many were made.
    """

    matcher: Matcher
    grown: int
    least: int
    users: WeakSet[Matcher] = field(default_factory=WeakSet)
    masks: int = 0

    @property
    def bytes(self) -> int:
        return max(self.grown, self.least)

    def looked_at(self) -> bool:
        """Whether the growth by the next mask is looked at."""
        self.masks += 1
        return self.masks <= EXACT or self.masks % EVERY == 0


class Guides:
    """Compiles guides, in a thread of its own, and keeps the compiled ones. Used by the worker's thread and by those that make masks."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # used last, last
        self._forgotten: list[tuple[WeakSet[Matcher], int]] = []  # who follows it still, and bytes
        self._bytes = self._dropped = 0
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """Of all that are kept, or still followed."""
        with self._lock:
            self._settle()
            return self._bytes

    @property
    def crowded(self) -> bool:
        """They take far more than they may."""
        return self.bytes > 2 * CACHE_BYTES

    def ready(self, grammar: str) -> bool:
        """``matcher`` would not have to compile."""
        return grammar in self._kept

    def start(self, grammars: Sequence[str], then: Callable[[bool], None]) -> None:
        """Compile in the background; ``then`` is called from there, with whether all could be; some may be dropped again.

        Raises:
            RuntimeError: there is no thread to be had; ``then`` is not called.
        """
        self._pool = self._pool or ThreadPoolExecutor(1, "quintet-guides")
        try:
            self._pool.submit(self._compile, grammars, then)
        except RuntimeError:
            self._pool = None  # it keeps what it was given, for a thread to come
            raise

    def restart(self) -> None:
        """Leave what is being compiled to itself, for it cannot be stopped."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None

    def matcher(self, grammar: str) -> Matcher:
        """A matcher at the start of a guide, which stays as long as there is one."""
        kept = self._compiled(grammar)
        with self._lock:
            made = kept.matcher.copy()
            kept.users.add(made)
            if grammar not in self._kept:  # dropped just now
                self._add(grammar, kept)
            return made

    def forget(self, grammar: str) -> None:
        """Compile it anew for the next: a limit was met in what its followers share, and that stays."""
        with self._lock:
            if (kept := self._kept.pop(grammar, None)) is not None:
                self._forgotten.append((kept.users, kept.bytes))
            self._settle()

    @contextlib.contextmanager
    def growing(self, grammar: str) -> Iterator[bool]:
        """Masks of a guide are being made: what it grows by is charged to it.

        Gives:
            Whether there is room for that. If not, it is one of the largest, and all that is followed takes far too much.
        """
        kept = self._kept.get(grammar)
        is_large = kept is not None and kept.bytes > CACHE_BYTES // SHARE
        has_room = not (is_large and self.crowded) or self._made_room(grammar)
        if kept is None or not kept.looked_at():
            yield has_room
            return
        before = heap.in_use()
        try:
            yield has_room
        finally:
            grown = heap.in_use() - before
            with self._lock:
                if self._kept.get(grammar) is kept:
                    self._charge(kept, grown)
                    self._drop(grammar)

    def shed(self) -> None:
        """Keep only what sequences follow."""
        with self._lock:
            for grammar in [grammar for grammar, kept in self._kept.items() if not kept.users]:
                self._bytes -= self._kept.pop(grammar).bytes

    def _compile(self, grammars: Sequence[str], then: Callable[[bool], None]) -> None:
        well = False
        try:
            for grammar in grammars:
                self._compiled(grammar)
            well = True
        finally:
            then(well)

    def _compiled(self, grammar: str) -> _Kept:
        with self._lock:
            if grammar in self._kept:
                self._kept.move_to_end(grammar)
                return self._kept[grammar]
        before = heap.in_use()
        compiled = self.compiler.compile(grammar)  # unlocked: others only want to look
        grown = heap.in_use() - before
        with self._lock:
            if grammar not in self._kept:
                self._add(grammar, _Kept(compiled, grown, LEAST_BYTES + BYTES_PER_CHARACTER * len(grammar)))
            kept = self._kept[grammar]
            self._drop(grammar)
        self._give_back()
        return kept

    def _add(self, grammar: str, kept: _Kept) -> None:
        self._kept[grammar] = kept
        self._bytes += kept.bytes

    def _charge(self, kept: _Kept, grown: int) -> None:
        before = kept.bytes
        kept.grown += grown if kept.masks <= EXACT else EVERY * max(-MOST_BYTES, min(grown, MOST_BYTES))
        self._bytes += kept.bytes - before

    def _settle(self) -> None:
        """Count no more what was forgotten, and has lost its last follower since."""
        followed = []
        for users, size in self._forgotten:
            if users:
                followed.append((users, size))
            else:
                self._bytes -= size
                self._dropped += size
        self._forgotten = followed

    def _drop(self, new: str) -> None:
        """Drop those that were not used for longest, until they do not take too much; never a ``new`` one, or one that is followed."""
        self._settle()
        if self._bytes <= CACHE_BYTES:
            return
        for grammar in [grammar for grammar, kept in self._kept.items() if not kept.users and grammar != new]:
            if self._bytes <= CACHE_BYTES:
                return
            size = self._kept.pop(grammar).bytes
            self._bytes -= size
            self._dropped += size

    def _made_room(self, new: str) -> bool:
        """Drop those that nobody follows any more; whether that is enough."""
        with self._lock:
            self._drop(new)
        return not self.crowded

    def _give_back(self) -> None:
        if self._dropped >= TRIM_BYTES:
            self._dropped = 0
            heap.give_back()
