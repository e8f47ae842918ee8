"""Which tokens the guides of a step's sequences allow, computed in a thread beside the forward pass."""

from __future__ import annotations

from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from quintet.backends.native.guide import U32, Follower, Guides
from quintet.backends.native.sequence import Sequence
from quintet.backends.native.thinking import Thinker

Masked = tuple[U32, list[int]]
"""Masks uint32 [R, ceil(V/32)], all ones where there is no guide, and the rows whose guide cannot go on."""


class Masks:
    """Keeps the sequences' followers.

    Args:
        vocab: width of the logits.
    """

    def __init__(self, guides: Guides, vocab: int) -> None:
        self._guides = guides
        self._words = -(-vocab // 32)
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, draws: Items[Sequence]) -> Future[Masked] | None:
        """Start on the masks of the sequences that will draw, which must not change meanwhile; ``None`` if none has a guide."""
        if not any(seq.guided for seq in draws):
            return None
        self._pool = self._pool or ThreadPoolExecutor(1, "quintet-masks")
        return self._pool.submit(self._fill, draws)

    def _fill(self, draws: Items[Sequence]) -> Masked:
        masks = np.full((len(draws), self._words), 0xFFFFFFFF, np.uint32)
        failed = [row for row, seq in enumerate(draws) if seq.guided and not self._row(seq, masks[row])]
        masks[failed] = 0xFFFFFFFF
        return masks, failed

    def _row(self, seq: Sequence, mask: U32) -> bool:
        follower = seq.follower
        if follower is None:
            follower = seq.follower = self._follower(seq)
        return all(follower.consume(token) for token in seq.generated[follower.consumed :]) and follower.fill(mask)

    def _follower(self, seq: Sequence) -> Follower | Thinker:
        guides = self._guides
        if seq.thinking is None:
            return guides.follow(seq.grammar)
        return Thinker(seq.thinking, guides.pieces, guides.eos_ids, guides.follow(seq.grammar) if seq.grammar else None)
