"""What a share of prefill computes, scores and echoes, written into the plan of a step. Plain code over values."""

from __future__ import annotations

from quintet.backends.native.schedule.kv import KvCache
from quintet.backends.native.schedule.plan import Chunk, Plan, ScoreJob
from quintet.backends.native.schedule.sequence import Group

ECHO_BURST = 4096
"""Most prompt tokens that one group emits in a step, over all its members: an echo of 128 samples must not delay others."""


def plan_segment(plan: Plan, chunk: Chunk) -> None:
    """Compute the chunk's tokens, and keep the hidden rows that are wanted of them."""
    seq, count, offset = chunk.seq, chunk.count, len(plan.tokens)
    if not count:
        return
    plan.tokens += seq.slice(seq.computed, seq.computed + count)
    plan.slots.append(seq.slot)
    plan.starts.append(seq.computed)
    plan.lengths.append(count)
    if seq.group.scoring:
        plan.rows += range(offset, offset + count)
    elif chunk.completes:
        plan.rows.append(offset + count - 1)


def plan_scores(plan: Plan, chunk: Chunk, first: int, kv: KvCache) -> None:
    """Keep the chunk's hidden rows (``first`` and on) with their pages and score the prompt tokens that it echoes."""
    seq, group = chunk.seq, chunk.seq.group
    for view in kv.stores(seq, seq.computed, seq.computed + chunk.count):
        plan.stores.append((view, first))
        first += len(view)
    begin, end = max(group.echoed, 1), group.echoed + chunk.echo  # nothing precedes the first token
    if begin < end:
        chunk.score = len(plan.scores)
        rows = kv.rows(seq, begin - 1, end - 1)
        plan.scores.append(ScoreJob(rows, list(group.prompt[begin:end]), group.logprobs or 0))


def echo_count(group: Group, reached: int, share: int) -> int:
    """Prompt tokens to echo once ``reached`` positions are computed; a log-probability needs the row before its token."""
    left, burst = group.echo_left, max(1, ECHO_BURST // len(group.members))
    if group.scoring:
        return max(0, min(left, reached + 1 - group.echoed, share, burst))
    return min(left, burst)
