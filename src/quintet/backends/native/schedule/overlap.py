"""Which step may begin before what the one before it drew is taken in. Plain code over values.

Nearly every step only decodes, and in the next one the same sequences decode, each a position further. What that one computes is known as
soon as the tokens are drawn, so its pass begins at once, and the scheduler does its work beside it::

    model      | pass of n | draw | pass of n+1                                   | draw | pass of n+2
    scheduler                       apply n, tell of it, plan n+1, expect n+2              apply n+1, ...

The plan remains what counts: where it says anything but what was expected, the pass that was begun comes to nothing. It wrote no more than
keys and values of places that were the sequences' own. All that is taken ahead of a plan are pages for those places.
vLLM has the like as asynchronous scheduling. Why, and what it saves: docs/decisions/0068-a-step-begun-early.md.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.schedule.kv import KvCache
from quintet.backends.native.schedule.plan import Plan
from quintet.backends.native.schedule.queues import Queues
from quintet.backends.native.schedule.sequence import Sequence
from quintet.backends.native.schedule.speculation import Speculation


class Expected(NamedTuple):
    """The step after a plan: its sequences again, in the same order, each with the token that it draws now.

    Args:
        starts: the position of each one's token.
        ends: tokens after which one of them ends, or may.
        left: how many such steps there are until one of them has all its tokens.
        grown: some of its tokens are the first of a page, which may have been taken for it.
    """

    sequences: list[Sequence]
    starts: list[int]
    ends: frozenset[int]
    left: int
    grown: bool = False

    def came_true(self, plan: Plan, tokens: list[int]) -> bool:
        """Whether a plan computes just this, with these tokens, and copies nothing before."""
        segments = plan.segments
        if plan.copies or plan.tokens != len(tokens) or plan.sequences != self.sequences:
            return False
        return [segment.start for segment in segments] == self.starts and [segment.tokens[0] for segment in segments] == tokens


class Overlap:
    """Looks a step ahead.

    Args:
        eos_ids: ids that end a sequence.
    """

    def __init__(self, kv: KvCache, queues: Queues, speculation: Speculation | None, eos_ids: frozenset[int]) -> None:
        self._kv = kv
        self._queues = queues
        self._speculation = speculation
        self._eos_ids = eos_ids

    def expect(self, plan: Plan) -> Expected | None:
        """What follows a plan that was just made, with pages for it, unless one of its sequences ends; ``None``: that is not known."""
        if not plan.decodes or len(plan.segments) != plan.tokens or any(segment.ask for segment in plan.segments):
            return None
        sequences = plan.sequences
        if any(seq.guided for seq in sequences):
            return None
        starts = [segment.start for segment in plan.segments]
        ends = self._eos_ids.union(*(seq.sampling.stop_token_ids for seq in sequences))
        left = min(seq.max_tokens - len(seq.generated) for seq in sequences)
        return self.expect_after(Expected(sequences, starts, ends, left))

    def expect_after(self, expected: Expected) -> Expected | None:
        """What follows what came true."""
        sequences, starts, ends, left, _ = expected
        if left < 2 or len(sequences) != self._queues.live or self._kv.pool.available < len(sequences):
            return None  # one will have all its tokens, there is more to do, or somebody may have to give a page up
        starts = [start + 1 for start in starts]
        growing = [seq for seq, start in zip(sequences, starts, strict=True) if start % PAGE == 0]
        for seq in growing:
            self._kv.grow_ahead(seq)
        return Expected(sequences, starts, ends, left - 1, bool(growing))

    def follows(self, expected: Expected, tokens: Items[int]) -> bool:
        """Whether it comes as expected after these, one of each sequence, which were not applied yet; an ``Outcome`` is none."""
        goes_on = expected.ends.isdisjoint(tokens) and min(tokens) >= 0
        return goes_on and (self._speculation is None or self._speculation.silent(expected.sequences, tokens))
