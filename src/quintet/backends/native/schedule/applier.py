"""The second half of a step: its results become tokens of sequences and events for clients. Plain code over values."""

from __future__ import annotations

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.types import U8, Outcome, Scores
from quintet.backends.native.schedule.emit import NUMERICAL, Emitter, refusal
from quintet.backends.native.schedule.kv import KvCache
from quintet.backends.native.schedule.plan import Kind, Plan, Results, Segment
from quintet.backends.native.schedule.queues import Queues
from quintet.backends.native.schedule.sequence import Action, Sequence, State
from quintet.backends.native.wire.messages import Events
from quintet.events import NO_DRAFTS, Blame, DraftCounts, Finish

_DECODING, _DECODE, _PREFILL = State.DECODE, Kind.DECODE, Kind.PREFILL  # a member of an enum takes a microsecond to look up in Python 3.11


class Applier:
    """Takes in what was computed. Sequences that ended since the plan was made are left out."""

    def __init__(self, kv: KvCache, queues: Queues, emitter: Emitter) -> None:
        self._kv = kv
        self._queues = queues
        self._emit = emitter
        self.drafts = NO_DRAFTS

    def apply(self, plan: Plan, results: Results) -> Events:
        """What a client hears of it: of each request first what is echoed, then what was drawn."""
        events: Events = {}
        scores, row = iter(results.scores), 0
        for segment in plan.segments:
            row += segment.wanted
            if segment.kind is _PREFILL:
                self._apply_prefill(segment, next(scores) if segment.score else None, results, row - 1, events)
        row = 0
        for segment in plan.segments:
            if segment in results.held:
                self._hold(segment, results.held[segment])
            elif segment.draws:
                self._apply_draws(segment, row, results, events)
                row += segment.draws
        return events

    def end(self, seq: Sequence, finish: Finish, events: Events, error: str = "", blame: Blame = Blame.SERVER) -> None:
        """With an event that says so, unless it has ended."""
        if seq.state is not State.DONE:
            self._emit.end(seq, finish, events, error, blame)
            self._queues.retire(seq)

    def _apply_prefill(self, segment: Segment, scores: Scores | None, results: Results, last: int, events: Events) -> None:
        """``last``: the segment's last hidden row."""
        seq, group = segment.seq, segment.seq.group
        if seq.state is State.PREFILL:
            seq.computed += len(segment.tokens)
            group.reached = max(group.reached, min(seq.computed, len(group.prompt)))
            self._kv.publish(seq)
        if segment.score and scores is None:
            for member in group.live:
                self.end(member, Finish.ERROR, events, NUMERICAL, Blame.NUMBERS)
            return
        self._emit.echo(group, segment.echo, scores, events)
        if segment.completes and not seq.max_tokens:
            for member in group.live:
                self.end(member, Finish.LENGTH, events)
        elif segment.completes and seq.state is State.PREFILL:
            seq.advance(Action.READY)
            if seq is group.leader:
                self._queues.groups.computed(group, seq, results.hidden[last])

    def _apply_draws(self, segment: Segment, row: int, results: Results, events: Events) -> None:
        seq, end = segment.seq, row + segment.draws
        if seq.state is not _DECODING:
            return
        computed = segment.kind is _DECODE
        if segment.draws > 1:
            self._count_draft(seq, results.tokens[row:end])
        self._apply_draw(seq, row, results, events, computed=computed)
        for more in range(row + 1, end):
            if seq.state is _DECODING and results.tokens[more] != Outcome.NOT_DRAWN:
                self._apply_draw(seq, more, results, events, computed=computed)
        if (segment.draws > 1 or segment.ask) and seq.state is _DECODING:
            self._kv.trim(seq)

    def _hold(self, segment: Segment, row: U8) -> None:
        """A sequence sits out: what it computed stays, but for what was drafted."""
        seq = segment.seq
        if seq.state is not _DECODING:
            return
        if segment.kind is _DECODE:
            self._computed(seq)
        if segment.draws > 1 or segment.ask:
            self._kv.trim(seq)
        seq.held, seq.late = row, True

    def _computed(self, seq: Sequence) -> None:
        seq.computed += 1
        if seq.computed % PAGE == 0:
            self._kv.publish(seq)

    def _count_draft(self, seq: Sequence, tokens: list[int]) -> None:
        """``tokens`` were drawn from a sequence's rows: one more than was accepted."""
        drawn = len(tokens) - tokens.count(Outcome.NOT_DRAWN)
        counts = DraftCounts.of(len(tokens) - 1, drawn - 1)
        seq.drafts, self.drafts = seq.drafts.plus(counts), self.drafts.plus(counts)

    def _apply_draw(self, seq: Sequence, row: int, results: Results, events: Events, *, computed: bool) -> None:
        if computed:
            self._computed(seq)
        seq.held = None
        token = results.tokens[row]
        if token < 0:
            self.end(seq, Finish.ERROR, events, *refusal(Outcome(token), seq))
            return
        seq.generated.append(token)
        if self._emit.token(seq, token, results.logprobs[row], results.tops[row], events):
            self._queues.retire(seq)
