"""One plan through the model: copy pages, forward, draw, score. The only caller of the runner."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace

import numpy as np

from quintet.backends.native.core.scored_rows import KEPT, ROOM, ScoredRows
from quintet.backends.native.core.types import (
    F32,
    I32,
    U8,
    Batch,
    Drafted,
    Given,
    Meanwhile,
    Outcome,
    Runner,
    Sampler,
    Samplers,
    Scorer,
    Scores,
)
from quintet.backends.native.schedule.emit import tops_of
from quintet.backends.native.schedule.pages import BlockTables
from quintet.backends.native.schedule.plan import Flat, Plan, Results, ScoreJob, Segment, Top
from quintet.backends.native.schedule.sequence import Sequence
from quintet.backends.native.worker.masks import Masked, Masks

SCORE_ROWS = 32
"""Rows of logits at a time where a runner does not score by itself."""


class _ByLogits:
    """``Scorer`` of a runner that is none."""

    def __init__(self, runner: Runner, samplers: Samplers) -> None:
        self._runner, self._samplers = runner, samplers

    def score(self, rows: U8, targets: I32, k: int) -> Scores:
        parts = []
        for first in range(0, len(rows), SCORE_ROWS):
            some = slice(first, first + SCORE_ROWS)
            parts.append(self._samplers.score(self._runner.logits(rows[some]), targets[some], k))
        return Scores(
            chosen=np.concatenate([part.chosen for part in parts]),
            top_ids=np.concatenate([part.top_ids for part in parts]),
            top=np.concatenate([part.top for part in parts]),
            log_sums=np.concatenate([part.log_sums for part in parts]),
        )


@dataclass(slots=True)
class Work:
    """A plan as the model takes it.

    Args:
        batch: what it computes; ``None`` = nothing.
        samplers: of ``flat.drawing``; they are there when ``Stepper.see`` was called.
    """

    plan: Plan
    flat: Flat
    batch: Batch | None
    samplers: list[Sampler] = field(default_factory=list)


class Stepper:
    """Runs plans on a runner whose pages the block tables list, and keeps the sequences' samplers."""

    def __init__(self, runner: Runner, tables: BlockTables, samplers: Samplers, masks: Masks | None = None) -> None:
        self._runner = runner
        self._tables = tables
        self._samplers = samplers
        self._scorer = runner if isinstance(runner, Scorer) else _ByLogits(runner, samplers)
        self._masks = masks
        self._nothing: U8 = np.zeros((0, runner.row_bytes), np.uint8)

    def copy(self, pages: Iterable[tuple[int, int]]) -> None:
        """Copy a plan's pages, ``(source, target)``; once, before it runs, whole or in parts."""
        for source, target in pages:
            self._runner.copy_page(source, target)

    def run(self, plan: Plan, meanwhile: Callable[[Work], None] | None = None) -> Results:
        """Do what the plan says, after ``copy``.

        Args:
            meanwhile: called as ``Runner.forward`` does, with the plan as it is computed; also if it computes no token.

        Raises:
            Exception: whatever was raised; nothing of the plan may be applied then, but it may be run again.
        """
        work = self.prepare(plan)
        masks = self._masks.begin(work.flat.drawing) if self._masks else None

        def beside() -> None:
            if meanwhile:
                meanwhile(work)
            self.see(work)

        try:
            hidden = self.compute(work.batch, beside)
        except Exception:
            if masks:
                masks()  # waits: the sequences may change now
            raise
        return self.finish(work, hidden, masks)

    def prepare(self, plan: Plan) -> Work:
        """The plan as arrays. Nothing changes."""
        flat = plan.flatten()
        if not flat.tokens:
            return Work(plan, flat, None)
        batch = Batch(
            tokens=np.array(flat.tokens, np.int32),
            lengths=np.array(flat.lengths, np.int32),
            starts=np.array(flat.starts, np.int32),
            tables=self._tables.gather(flat.slots),
            rows=np.array(flat.rows, np.int32),
            given=_given(flat) if flat.given else None,
        )
        return Work(plan, flat, batch)

    def after(self, work: Work, *, grown: bool) -> Batch:
        """What is computed next where all decode and go on, and have pages for it: its tokens are to be filled in.

        Args:
            grown: some of these pages are new.
        """
        batch = work.batch
        assert batch is not None, "each that decodes computes a token"
        tables = self._tables.gather(work.flat.slots) if grown else batch.tables
        return Batch(np.empty_like(batch.tokens), batch.lengths, batch.starts + 1, tables, batch.rows)

    def compute(self, batch: Batch | None, meanwhile: Meanwhile) -> U8:
        """The pass; its hidden rows."""
        if batch is None:
            meanwhile()
            return self._nothing
        return self._runner.forward(batch, meanwhile)

    def see(self, work: Work) -> None:
        """Have the samplers see what was drawn before; beside the pass, or any time before ``finish``."""
        work.samplers = [self._drawing(segment) for segment in work.flat.drawing]

    def finish(self, work: Work, hidden: U8, masks: Callable[[], Masked] | None = None) -> Results:
        """All that comes after the pass."""
        flat = work.flat
        for view, first in flat.stores:
            view[:, :-ROOM], view[:, -ROOM:] = hidden[first : first + len(view)], 0
        results = Results(hidden, [], [], [], [])
        if flat.drawing:
            self._draw(flat, work.samplers, results, masks)
        if jobs := [segment.score for segment in work.plan.segments if segment.score]:
            results.scores = self._score(jobs)
        for segment, sampler in zip(flat.drawing, work.samplers, strict=True):
            segment.seq.sampler = sampler
        return results

    def _draw(self, flat: Flat, samplers: list[Sampler], results: Results, pending: Callable[[], Masked] | None) -> None:
        logits, drawing = self._logits(flat, results.hidden), flat.drawing
        masked = pending() if pending else None
        if masked and masked.late:
            rows = self._hold(flat, masked, results)
            if not rows:
                return
            kept = [order for order, segment in enumerate(drawing) if segment not in masked.late]
            drawing, samplers = [drawing[order] for order in kept], [samplers[order] for order in kept]
            logits, masked = logits[rows], masked.of(rows)
        draws = [segment.seq for segment in drawing]
        drafted = _drafted(drawing) if len(logits) > len(draws) else None
        if drafted and masked:
            drafted.tokens[masked.ends] = -1
        positions = np.array([seq.length for seq in draws], np.uint64)
        owners = draws if drafted is None else [segment.seq for segment in drawing for _ in range(segment.draws)]
        asked = [-1 if seq.logprobs is None else seq.logprobs for seq in owners]
        alternatives = np.array(asked, np.int32) if max(asked) >= 0 else None
        drawn = self._samplers.draw(logits, samplers, positions, masked.bits if masked else None, drafted, alternatives)
        results.tokens = drawn.tokens.tolist()
        _tell_scores(owners, logits, drawn.scores, results)

    def _hold(self, flat: Flat, masked: Masked, results: Results) -> list[int]:
        """Keep the rows that cannot be drawn from yet; returns which of all can."""
        rows, first, computed = list[int](), 0, len(results.hidden)
        for segment in flat.drawing:
            own = range(first, first + segment.draws)
            first += segment.draws
            if segment in masked.late:
                origin = flat.origins[own[0]]
                results.held[segment] = (results.hidden[origin] if origin < computed else flat.saved[origin - computed]).copy()
            else:
                rows += own
        return rows

    def sampler(self, seq: Sequence) -> Sampler:
        """The sequence's own, having seen all of its tokens."""
        sampler = seq.sampler
        if sampler is None:
            sampler = seq.sampler = self._make(seq)
        for token in seq.generated[sampler.accepted :]:
            sampler.accept(token)
        return sampler

    def _make(self, seq: Sequence) -> Sampler:
        """Many samples of a prompt begin in one step. What each would make of it and of long lists is the same, and may take long."""
        last, seq.group.sampled = seq.group.sampled, seq
        if last and last.sampler and not last.sampler.accepted and _alike(last, seq):
            return last.sampler.fork(seq.sampling.seed)
        return self._samplers.make(seq.sampling, seq.bad_words, seq.group.text)

    def _drawing(self, segment: Segment) -> Sampler:
        """What it draws with. A draw accepts drafts, and what Mirostat learnt by that cannot be taken back, nor learnt again from tokens
        alone; a step may fail. So the sequence's own sampler stays where it is until all is done."""
        sampler = self.sampler(segment.seq)
        return sampler.copy() if segment.draft else sampler

    def _logits(self, flat: Flat, hidden: U8) -> F32:
        """Logits float32 [D, V]; a hidden row that several sequences draw from goes through the output matrix once."""
        if not flat.saved and flat.origins == list(range(len(flat.origins))):
            return self._runner.logits(hidden[: len(flat.origins)])
        rows = np.concatenate([hidden, flat.saved]) if flat.saved else hidden
        distinct = {row: order for order, row in enumerate(dict.fromkeys(flat.origins))}
        logits = self._runner.logits(rows[list(distinct)])
        return logits if len(distinct) == len(flat.origins) else logits[[distinct[row] for row in flat.origins]]

    def _score(self, jobs: list[ScoreJob]) -> list[Scores | None]:
        """All jobs' rows together, then taken apart again. The whole output matrix is for those rows that were never scored."""
        scored = ScoredRows([view for job in jobs for view in job.rows])
        targets = np.array([target for job in jobs for target in job.targets], np.int32)
        known, unknown = scored.which(known=True), scored.which(known=False)
        chosen = np.empty(len(targets), np.float32)
        if len(known):
            chosen[known] = scored.of_known(known, self._runner.logits_of(scored.rows[known], targets[known]))
        if len(unknown):
            scores = self._scorer.score(scored.rows[unknown], targets[unknown], min(KEPT, self._runner.vocab))
            chosen[unknown] = scores.chosen
            scored.learn(unknown, scores)
            scored.keep()
        whole = scored.scores(chosen, max(job.top for job in jobs))
        results: list[Scores | None] = []
        first = 0
        for job in jobs:
            own = slice(first, first + len(job.targets))
            first = own.stop
            finite = np.isfinite(whole.chosen[own]).all()
            results.append(Scores(whole.chosen[own], whole.top_ids[own], whole.top[own], whole.log_sums[own]) if finite else None)
        return results


def _alike(one: Sequence, other: Sequence) -> bool:
    """They choose in the same way, but for the seed."""
    return (one.sampling, one.bad_words) == (replace(other.sampling, seed=one.sampling.seed), other.bad_words)


def _given(flat: Flat) -> Given:
    places = np.concatenate([np.arange(first, first + len(rows), dtype=np.int32) for first, rows in flat.given])
    spans = np.array(flat.spans, np.int32).reshape(-1, 2)
    return Given(places, np.ascontiguousarray(np.concatenate([rows for _, rows in flat.given])), spans)


def _tell_scores(owners: Items[Sequence], logits: F32, scores: Scores | None, results: Results) -> None:
    """Log-probabilities of the tokens drawn from each row, for those sequences that want them."""
    results.logprobs = [None] * len(owners)
    results.tops = [()] * len(owners)
    if scores is None:
        return
    for row, (seq, logprob, top) in enumerate(zip(owners, scores.chosen.tolist(), tops_of(scores, scores.top.shape[1]), strict=True)):
        if seq.logprobs is None or results.tokens[row] == Outcome.NOT_DRAWN:
            continue
        results.logprobs[row] = logprob
        results.tops[row] = _logprobs_of(seq.logprob_ids, logits[row], scores.log_sums[row]) if seq.logprob_ids else top[: seq.logprobs]


def _logprobs_of(ids: tuple[int, ...], logits: F32, log_sum: float) -> Top:
    """The log-probabilities of these tokens, likeliest first; as ``Scores`` has them, to the bit."""
    values = (logits[list(ids)].astype(np.float64) - log_sum).astype(np.float32).tolist()
    return tuple(sorted(zip(ids, values, strict=True), key=lambda id_and_logprob: (-id_and_logprob[1], id_and_logprob[0])))


def _drafted(drawing: Items[Segment]) -> Drafted:
    lengths = [segment.draws for segment in drawing]
    return Drafted(np.array(lengths, np.int32), np.array([token for segment in drawing for token in (*segment.draft, -1)], np.int32))
