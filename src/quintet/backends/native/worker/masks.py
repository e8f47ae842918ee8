"""Which tokens the guides of a step's sequences allow, computed in a thread beside the forward pass."""

from __future__ import annotations

from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from quintet.backends.native.draft.thinking_budget import ThinkingBudget
from quintet.backends.native.schedule.plan import Segment
from quintet.backends.native.schedule.sequence import Sequence
from quintet.guides.compiled import Guides
from quintet.guides.matcher import U32, Matcher


@dataclass(frozen=True, slots=True)
class Masked:
    """What may be drawn.

    Args:
        bits: uint32 [R, ceil(V/32)]; all ones where there is no guide, all zeros where one cannot go on.
        ends: rows after which a sequence cannot go on as drafted.
    """

    bits: U32
    ends: list[int]


class Masks:
    """Keeps the sequences' followers.

    Args:
        vocab: width of the logits.
    """

    def __init__(self, guides: Guides, vocab: int) -> None:
        self._guides = guides
        self._words = -(-vocab // 32)
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, drawing: Items[Segment]) -> Future[Masked] | None:
        """Start on the masks of the sequences that will draw, which must not change meanwhile; ``None`` if none has a guide."""
        if not any(segment.seq.guided for segment in drawing):
            return None
        self._pool = self._pool or ThreadPoolExecutor(1, "quintet-masks")
        return self._pool.submit(self._fill, drawing)

    def _fill(self, drawing: Items[Segment]) -> Masked:
        masked = Masked(np.full((sum(segment.draws for segment in drawing), self._words), 0xFFFFFFFF, np.uint32), [])
        first = 0
        for segment in drawing:
            rows = masked.bits[first : first + segment.draws]
            if segment.seq.guided:
                filled = self._rows(segment.seq, segment.draft, rows)
                rows[filled:] = 0xFFFFFFFF
                if not filled:
                    rows[0] = 0
                elif filled < segment.draws:
                    masked.ends.append(first + filled - 1)
            first += segment.draws
        return masked

    def _rows(self, seq: Sequence, draft: Items[int], masks: U32) -> int:
        """Masks of the next token and of those after it, as far as the draft keeps to the guide; returns how many."""
        if not self._row(seq, masks[0]) or seq.matcher is None:
            return 0
        ahead = seq.matcher.copy() if draft else seq.matcher  # what a wrong draft does to it, even to exceed a limit, is forgotten
        for row, token in enumerate(draft):
            allowed = masks[row, token // 32] >> np.uint32(token % 32) & 1
            if not (allowed and ahead.consume(token) and ahead.fill(masks[row + 1])):
                return row + 1
        return len(draft) + 1

    def _row(self, seq: Sequence, mask: U32) -> bool:
        matcher = seq.matcher
        if matcher is None:
            matcher = seq.matcher = self._matcher(seq)
        return all(matcher.consume(token) for token in seq.generated[matcher.consumed :]) and matcher.fill(mask)

    def _matcher(self, seq: Sequence) -> Matcher | ThinkingBudget:
        rest = self._guides.matcher(seq.grammar) if seq.grammar else None
        if seq.thinking is not None:
            compiler = self._guides.compiler
            return ThinkingBudget(seq.thinking, compiler.pieces, compiler.eos_ids, rest)
        assert rest is not None, "asked of a guided sequence only"
        return rest
