"""What one step is to do, and what came of it: plain data between the scheduler and ``worker.step``.

A plan has a row for each sequence that takes part, its ``Segment``. The model takes them laid end to end, as one ragged batch::

    segments   A decodes   B decodes, with a draft   C prefills      D forks from C
    tokens     [a9]        [b4 b5? b6?]              [c0 c1 c2 c3]
    rows        0           1  2   3                           4                      hidden rows that are wanted
    origins     0           1  2   3                           4     4                rows to draw from
"""

from __future__ import annotations

import enum
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from quintet.backends.native.core.types import F32, U8, Scores
from quintet.backends.native.schedule.images import Given, PendingImage
from quintet.backends.native.schedule.sequence import Sequence


class Kind(enum.Enum):
    """Of a segment."""

    DECODE = "decode"  # computes its last token, and those drafted after it, and draws from each of these rows
    PREFILL = "prefill"  # computes some of its tokens, echoes some of its prompt, or both; draws when that completes it
    FORK = "fork"  # computes nothing: it draws from a row that is there, of its prompt as another computed it, or one held for its mask


_DECODE, _PREFILL = Kind.DECODE, Kind.PREFILL  # a member of an enum takes a microsecond to look up in Python 3.11


@dataclass(slots=True)
class ScoreJob:
    """Prompt log-probabilities of consecutive tokens.

    Args:
        rows: views of stored hidden rows and what is known of them, see ``ScoredRows``, in order; read after all ``Segment.stores``
            were filled.
        targets: the token after each row.
        top: alternatives per token.
    """

    rows: list[U8]
    targets: list[int]
    top: int


@dataclass(slots=True, eq=False)
class Segment:
    """One sequence's part in a step.

    Args:
        slot, start: its block table, and the position of its first token.
        tokens: to compute; none if it forks, or when only cached rows are scored or the prompt is echoed.
        wanted: how many of them, the last ones, have a hidden row that is wanted.
        draws: rows that it draws from: of ``Kind.DECODE`` all, else 1 or 0.
        origin: of ``Kind.FORK`` where its row is: the last of a segment before it, or one that was kept, uint8 [row_bytes].
        stores: views, page by page, into which all of its hidden rows go; nothing is known of them yet.
        score: what it needs log-probabilities of, if anything.
        echo: prompt tokens of its group to emit, from ``group.echoed`` on.
        completes: nothing is left to compute or echo after this; the sequence draws, or is done with ``max_tokens`` 0.
        given: what stands for its tokens that are an image's; ``None`` = none are.
        ask: most tokens that the draft model may add before the step runs; there are places for them.
    """

    seq: Sequence
    kind: Kind
    slot: int
    start: int
    tokens: list[int]
    wanted: int = 0
    draws: int = 0
    origin: Segment | U8 | None = None
    stores: Items[U8] = ()
    score: ScoreJob | None = None
    echo: int = 0
    completes: bool = False
    given: Given | None = None
    ask: int = 0

    @property
    def draft(self) -> list[int]:
        """The tokens after its next one that are a guess: it draws at each of them, as long as it was right."""
        return self.tokens[1:] if self.draws > 1 else []


@dataclass(slots=True)
class Flat:
    """The segments of a plan laid end to end.

    Args:
        tokens: [T] of all that compute.
        lengths, starts, slots: of each segment that computes.
        rows: [R] indexes into ``tokens`` whose hidden rows are wanted.
        stores: hidden rows, numbered as ``rows``, from the second on go into the first.
        drawing: segments that draw.
        origins: [D] rows to draw from, in order of ``drawing``: an index into ``rows``, and after these into ``saved``.
        saved: hidden rows of prompts computed in an earlier step, uint8 [row_bytes].
        given: indexes into ``tokens``, ascending, and the rows that stand from there on, float32 [·, width of the embedding].
        spans: indexes into ``tokens``, and how many from there on see each other both ways.
    """

    tokens: list[int]
    lengths: list[int]
    starts: list[int]
    slots: list[int]
    rows: list[int]
    stores: list[tuple[U8, int]]
    drawing: list[Segment]
    origins: list[int]
    saved: list[U8]
    given: list[tuple[int, F32]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Plan:
    """One step.

    Args:
        copies: pages to copy before the forward pass, ``(source, target)``, in order.
        segments: decoding ones first, then forks from kept rows, then prefills, each before those that fork from it.
        tokens: how many are computed.
        encoding: the image of which a piece is encoded beside it; ``None`` = none waits to be.
        restoring: some of the pages of the head of the queue were brought back from a disk, and there are more.
    """

    copies: list[tuple[int, int]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    tokens: int = 0
    encoding: PendingImage | None = None
    restoring: bool = False

    def add(self, segment: Segment) -> None:
        """One more takes part."""
        self.segments.append(segment)
        self.tokens += len(segment.tokens)

    def lengthen(self, segment: Segment, draft: Items[int]) -> None:
        """Tokens were drafted for a segment that asked for them."""
        segment.tokens += draft
        segment.wanted += len(draft)
        segment.draws += len(draft)
        self.tokens += len(draft)

    @property
    def decodes(self) -> bool:
        """Nothing else is done: each segment computes a sequence's last token, and drafts."""
        return bool(self.segments) and all(segment.kind is _DECODE for segment in self.segments)

    @property
    def prefilled(self) -> int:
        """How many tokens are computed of those that prefill."""
        return sum(len(segment.tokens) for segment in self.segments if segment.kind is _PREFILL)

    @property
    def sequences(self) -> list[Sequence]:
        """Every sequence that takes part."""
        return [segment.seq for segment in self.segments]

    def halves(self) -> tuple[Plan, Plan] | None:
        """The same in two parts, each with whole requests, in order; ``None`` if there is only one. Pages are copied already."""
        requests = list(dict.fromkeys(seq.request_id for seq in self.sequences))
        if len(requests) < 2:
            return None
        in_first = set(requests[: len(requests) // 2])
        first, second = Plan(), Plan()
        for segment in self.segments:
            half = first if segment.seq.request_id in in_first else second
            half.add(segment)
        return first, second

    def flatten(self) -> Flat:
        """As the model takes it; once per step."""
        decodes = all(segment.kind is _DECODE for segment in self.segments)  # nearly every step: each row is wanted, and drawn from
        computing = self.segments if decodes else [segment for segment in self.segments if segment.tokens]
        drawing = self.segments if decodes else [segment for segment in self.segments if segment.draws]
        tokens = [token for segment in computing for token in segment.tokens]
        lengths = [len(segment.tokens) for segment in computing]
        starts, slots = [segment.start for segment in computing], [segment.slot for segment in computing]
        flat = Flat(tokens, lengths, starts, slots, rows=[], stores=[], drawing=drawing, origins=[], saved=[])
        if decodes:
            flat.rows = flat.origins = list(range(len(tokens)))
        else:
            self._place_rows(flat)
        return flat

    def _place_rows(self, flat: Flat) -> None:
        rows, total = flat.rows, sum(segment.wanted for segment in self.segments)
        last: dict[Segment, int] = {}
        end = 0
        for segment in self.segments:
            end += len(segment.tokens)
            first = len(rows)
            rows += range(end - segment.wanted, end)
            if segment.given:
                begin = end - len(segment.tokens)
                flat.given += [(begin + at, given) for at, given in segment.given.rows]
                flat.spans += [(begin + at, count) for at, count in segment.given.spans]
            last[segment] = len(rows) - 1
            for view in segment.stores:
                flat.stores.append((view, first))
                first += len(view)
            if isinstance(segment.origin, Segment):
                flat.origins.append(last[segment.origin])
            elif segment.origin is not None:
                flat.origins.append(total + len(flat.saved))
                flat.saved.append(segment.origin)
            else:
                flat.origins += range(len(rows) - segment.draws, len(rows))


Top = tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Results:
    """What a step computed.

    Args:
        hidden: the wanted hidden rows of the segments in order, uint8 [R, row_bytes].
        tokens: drawn at each row of the segments that draw; below 0 an ``Outcome``: there is none.
        logprobs: of these tokens; ``None`` where log-probabilities are off.
        tops: the most likely tokens there; empty where none are asked for.
        scores: one for each segment with ``score``; ``None`` where the logits were not finite.
        held: segments that drew nothing, as their masks are late, and the hidden row of each to draw from, uint8 [row_bytes].
    """

    hidden: U8
    tokens: list[int]
    logprobs: list[float | None]
    tops: list[Top]
    scores: list[Scores | None]
    held: dict[Segment, U8] = field(default_factory=dict)
