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

from quintet.backends.native.schedule.kv import KvCache
from quintet.backends.native.schedule.plan import Kind, Plan
from quintet.backends.native.schedule.queues import Queues
from quintet.backends.native.schedule.sequence import Sequence
from quintet.backends.native.schedule.speculation import Speculation

_DECODE = Kind.DECODE  # a member of an enum takes a microsecond to look up in Python 3.11


class Expected(NamedTuple):
    """The step after a plan: its sequences again, in the same order, each with the token that it draws now.

    Args:
        sequences: in the plan's order.
        ends: tokens after which one of them ends, or may.
    """

    sequences: list[Sequence]
    ends: frozenset[int]


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
        expected = self._expected(plan)
        if expected is not None:
            for seq in expected.sequences:
                self._kv.grow_ahead(seq)
        return expected

    def follows(self, expected: Expected, tokens: Items[int]) -> bool:
        """Whether it comes as expected after these, one of each sequence, which were not applied yet; an ``Outcome`` is none."""
        goes_on = expected.ends.isdisjoint(tokens) and min(tokens) >= 0
        return goes_on and (self._speculation is None or self._speculation.silent(expected.sequences, tokens))

    def _expected(self, plan: Plan) -> Expected | None:
        segments = plan.segments
        if not 0 < len(segments) == plan.tokens == self._queues.live or self._kv.pool.available < len(segments):
            return None  # there is more to do than to decode these, or somebody may have to give a page up
        if not all(segment.kind is _DECODE and not segment.ask for segment in segments):
            return None
        sequences = plan.sequences
        if any(seq.guided or len(seq.generated) + 2 > seq.max_tokens for seq in sequences):
            return None
        return Expected(sequences, self._eos_ids.union(*(seq.sampling.stop_token_ids for seq in sequences)))
