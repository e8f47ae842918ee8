"""Results as rows of events, grouped by request; the front adds the tokens' bytes. Plain code over values."""

from __future__ import annotations

from typing import Protocol

from quintet.backends.native.core.types import Outcome, Scores
from quintet.backends.native.schedule.plan import Top
from quintet.backends.native.schedule.sequence import Group, Sequence
from quintet.backends.native.wire.messages import EventRow, Events, Row, ScoredRow, TokenRow
from quintet.events import NO_DRAFTS, Blame, Finish
from quintet.inputs.sampling import BAN
from quintet.request import Sampling
from quintet.thinking import Thinking

NUMERICAL = "The model produced values that are not finite."
"""Client-safe reason of a sequence that ended because its logits were NaN or infinite."""
FAILED = "The engine could not process this request."
"""Client-safe reason of a request that broke its step, or of which something else of ours broke."""

REFUSED = {
    Outcome.NOT_FINITE: (NUMERICAL, Blame.NUMBERS),
    Outcome.NOTHING_LEFT: ("The request's own controls ban every token that could come next", Blame.REQUEST),
    Outcome.NO_WAY_ON: ("The guide is too complex to be followed to its end.", Blame.REQUEST),
}
"""Outcomes that end a sequence, and whose fault each is; ``refusal`` has the whole reason."""


class Controlled(Protocol):
    """What of a sequence may ban tokens."""

    @property
    def sampling(self) -> Sampling: ...
    @property
    def bad_words(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def grammar(self) -> str: ...
    @property
    def thinking(self) -> Thinking | None: ...


def refusal(outcome: Outcome, seq: Controlled) -> tuple[str, Blame]:
    """The client-safe reason of a sequence that ended because nothing could be drawn, and whose fault it is."""
    reason, blame = REFUSED[outcome]
    if outcome is Outcome.NOTHING_LEFT:
        own, thinking = seq.sampling, seq.thinking
        banning = {
            "guide": seq.grammar,
            "reasoning budget": thinking is not None and thinking.budget is not None,
            "allowed_token_ids": own.allowed_token_ids,
            "bad_words": seq.bad_words,
            "logit_bias": any(bias <= BAN for _, bias in own.logit_bias),
        }
        reason = f"{reason}: {', '.join(name for name, there in banning.items() if there)}."
    return reason, blame


class Emitter:
    """Makes events for one vocabulary.

    Args:
        eos_ids: ids that end a sequence.
    """

    def __init__(self, eos_ids: frozenset[int]) -> None:
        self.eos_ids = eos_ids

    def token(self, seq: Sequence, token: int, logprob: float | None, top: Top, events: Events) -> bool:
        """Emit a token that ``seq`` has just generated; True if it is its last."""
        finish = None
        if seq.ends_with(token, self.eos_ids):
            finish = Finish.EOS
        elif len(seq.generated) >= seq.max_tokens:
            finish = Finish.LENGTH
        group = seq.group
        first = len(seq.generated) == 1 and not group.echo
        row: Row
        if finish is None and not first:
            row = TokenRow(seq.index, token) if logprob is None else ScoredRow(seq.index, token, logprob, top, False)
        else:
            cached, drafts = (group.cached or 0, seq.drafts) if finish else (0, NO_DRAFTS)
            row = EventRow(seq.index, token, logprob, top, False, finish, cached, "", group.waited if first else 0.0, drafts)
        events.setdefault(seq.request_id, []).append(row)
        return finish is not None

    def end(self, seq: Sequence, finish: Finish, events: Events, error: str = "", blame: Blame = Blame.SERVER) -> None:
        """Emit a terminal event that carries no token."""
        group = seq.group
        waited = 0.0 if seq.generated or group.echoed > group.echo_from else group.waited
        cached = group.cached or 0
        row = EventRow(seq.index, -1, None, (), False, finish, cached, error, waited, seq.drafts, blame, max(cached, group.reached))
        events.setdefault(seq.request_id, []).append(row)

    def echo(self, group: Group, count: int, scores: Scores | None, events: Events) -> None:
        """Emit the group's next ``count`` prompt tokens, once for all members; ``scores`` is of all of them but the prompt's first."""
        start = group.echoed
        group.echoed = start + count
        if not count:
            return
        tokens = group.prompt[start : start + count]
        logprobs: list[float | None] = [None] * count
        tops: list[Top] = [()] * count
        if scores is not None:
            scored = len(scores.chosen)
            logprobs[count - scored :] = scores.chosen.tolist()
            tops[count - scored :] = tops_of(scores, group.logprobs or 0)
        if group.images:  # nothing is scored where there is an image
            for at in range(count):
                if group.images.at(start + at):
                    logprobs[at], tops[at] = None, ()
        if group.live:
            first = group.members[0]
            own = zip(tokens, logprobs, tops, strict=True)
            rows: list[Row] = [ScoredRow(first.index, token, logprob, top, True) for token, logprob, top in own]
            if start == group.echo_from and group.waited:
                rows[0] = EventRow(first.index, tokens[0], logprobs[0], tops[0], True, waited=group.waited)
            events.setdefault(first.request_id, []).extend(rows)


def tops_of(scores: Scores, count: int) -> list[Top]:
    """The ``count`` most likely ``(token id, logprob)`` of each row."""
    if not count:
        return [()] * len(scores.chosen)
    ids, values = scores.top_ids[:, :count], scores.top[:, :count]
    pairs, width = list(zip(ids.ravel().tolist(), values.ravel().tolist(), strict=True)), ids.shape[1]
    return [tuple(pairs[at : at + width]) for at in range(0, len(pairs), width)]
