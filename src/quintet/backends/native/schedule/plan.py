"""What one engine step is to do, and what came of it: plain data between the scheduler and ``step``."""

from __future__ import annotations

from dataclasses import dataclass, field

from quintet.backends.native.core.runner import U8, Scores
from quintet.backends.native.schedule.sequence import Sequence


@dataclass(slots=True)
class Chunk:
    """A sequence's share of prefill in this step.

    Args:
        seq: in PREFILL.
        count: tokens to compute, from ``seq.computed`` on; may be 0 when only cached rows are scored or the prompt is echoed.
        echo: prompt tokens of its group to emit, from ``group.echoed`` on.
        score: index into ``Plan.scores`` if these need log-probabilities, else -1.
        completes: nothing is left to compute or echo after this; the sequence draws, or is done with ``max_tokens`` 0.
        row: with ``completes``, where the row it draws from is, as in ``Plan.draw_rows``; -1 if it does not draw.
    """

    seq: Sequence
    count: int
    echo: int
    score: int = -1
    completes: bool = False
    row: int = -1


@dataclass(slots=True)
class ScoreJob:
    """Prompt log-probabilities of consecutive tokens.

    Args:
        rows: views of stored hidden rows and what is known of them, see ``ScoredRows``, in order; read after ``Plan.stores`` were filled.
        targets: the token after each row.
        top: alternatives per token.
    """

    rows: list[U8]
    targets: list[int]
    top: int


@dataclass(slots=True)
class Plan:
    """One step. Segments are the decoding sequences in order, then the chunks with ``count`` > 0.

    A decoding sequence has its last token computed, and those that are drafted after it. It draws from each of these rows.

    Args:
        copies: pages to copy before the forward pass, ``(source, target)``, in order.
        tokens: of all segments, one after the other.
        slots, starts, lengths: per segment: block table, first position, number of tokens.
        rows: indexes into ``tokens`` whose hidden rows are wanted; of the decoding sequences come first.
        stores: ``(view, first)``: hidden rows ``first`` and on (numbered as ``rows``) go into ``view``, and nothing is known of them yet.
        decodes: number of decoding sequences.
        draws: sequences that draw; the decoding ones first.
        drafts: the tokens drafted for each of them; empty = for none.
        draw_rows: hidden rows to draw from, in order of ``draws``, those of one sequence in a row: an index into ``rows``, or ``~i`` for
            ``saved[i]``.
        saved: hidden rows of prompts computed in an earlier step, uint8 [row_bytes].
    """

    copies: list[tuple[int, int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    stores: list[tuple[U8, int]] = field(default_factory=list)
    decodes: int = 0
    draws: list[Sequence] = field(default_factory=list)
    drafts: list[list[int]] = field(default_factory=list)
    draw_rows: list[int] = field(default_factory=list)
    saved: list[U8] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    scores: list[ScoreJob] = field(default_factory=list)

    def draw(self, seq: Sequence, row: int) -> None:
        """One more draws, from this one of ``draw_rows``."""
        self.draws.append(seq)
        self.draw_rows.append(row)
        if self.drafts:
            self.drafts.append([])

    @property
    def sequences(self) -> list[Sequence]:
        """Every sequence that takes part."""
        return list(dict.fromkeys([*self.draws, *(chunk.seq for chunk in self.chunks)]))


NO_WAY_ON = -3
"""Instead of a token: the sequence's guide cannot be followed any further."""

Top = tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Results:
    """What a step computed.

    Args:
        hidden: hidden rows, numbered as ``Plan.rows``, uint8 [R, row_bytes].
        tokens: drawn from each of ``Plan.draw_rows``; below 0 where there is none: ``NO_WAY_ON`` or one of ``core``'s.
        logprobs: of these tokens; ``None`` where log-probabilities are off.
        tops: the most likely tokens there; empty where none are asked for.
        scores: one for each of ``Plan.scores``; ``None`` where the logits were not finite.
    """

    hidden: U8
    tokens: list[int]
    logprobs: list[float | None]
    tops: list[Top]
    scores: list[Scores | None]
