"""One plan through the model: copy pages, forward, draw, score. The only caller of the runner."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np

from quintet.backends.native.core import F32, U8, Batch, Runner, Sampler, Samplers, Scores, draw, score
from quintet.backends.native.emit import tops_of
from quintet.backends.native.masks import Masked, Masks
from quintet.backends.native.pages import BlockTables
from quintet.backends.native.plan import NO_WAY_ON, Plan, Results, ScoreJob
from quintet.backends.native.sequence import Sequence

SCORE_ROWS = 32
"""Rows of logits computed at a time for prompt log-probabilities: 32 rows of 150,000 floats are 19 MB."""


class Stepper:
    """Runs plans on a runner whose pages the block tables list, and keeps the sequences' samplers."""

    def __init__(self, runner: Runner, tables: BlockTables, samplers: Samplers, masks: Masks | None = None) -> None:
        self._runner = runner
        self._tables = tables
        self._samplers = samplers
        self._masks = masks
        self._nothing: U8 = np.zeros((0, runner.row_bytes), np.uint8)

    def run(self, plan: Plan) -> Results:
        """Do what the plan says.

        Raises:
            Exception: whatever the runner raised; nothing of the plan may be applied then.
        """
        for source, target in plan.copies:
            self._runner.copy_page(source, target)
        masks = self._masks.begin(plan.draws) if self._masks else None
        try:
            hidden = self._forward(plan) if plan.tokens else self._nothing
        except Exception:
            if masks:
                masks.exception()  # waits: the sequences may change now
            raise
        for view, first in plan.stores:
            view[:] = hidden[first : first + len(view)]
        results = Results(hidden, [], [], [], [])
        if plan.draws:
            self._draw(plan, results, masks)
        if plan.scores:
            results.scores = self._score(plan.scores)
        return results

    def _forward(self, plan: Plan) -> U8:
        return self._runner.forward(
            Batch(
                tokens=np.array(plan.tokens, np.int32),
                lengths=np.array(plan.lengths, np.int32),
                starts=np.array(plan.starts, np.int32),
                tables=self._tables.gather(plan.slots),
                rows=np.array(plan.rows, np.int32),
            )
        )

    def _draw(self, plan: Plan, results: Results, pending: Future[Masked] | None) -> None:
        logits, draws = self._logits(plan, results.hidden), plan.draws
        masks, failed = pending.result() if pending else (None, [])
        tokens = draw(logits, [self._sampler(seq) for seq in draws], np.array([seq.length for seq in draws], np.uint64), masks)
        tokens[failed] = NO_WAY_ON
        results.tokens = tokens.tolist()
        results.logprobs = [None] * len(draws)
        results.tops = [()] * len(draws)
        wanted = [order for order, seq in enumerate(draws) if seq.logprobs is not None]
        if wanted:
            every = len(wanted) == len(draws)
            most = max(draws[order].logprobs or 0 for order in wanted)
            drawn = np.maximum(tokens, 0)  # of a row that gave no token, no score is used
            scores = score(logits if every else logits[wanted], drawn if every else drawn[wanted], most)
            for order, logprob, top in zip(wanted, scores.chosen.tolist(), tops_of(scores, most), strict=True):
                results.logprobs[order] = logprob
                results.tops[order] = top[: draws[order].logprobs]

    def _sampler(self, seq: Sequence) -> Sampler:
        """The sequence's own, having seen all of its tokens."""
        sampler = seq.sampler
        if sampler is None:
            sampler = seq.sampler = self._samplers.make(seq.sampling, seq.bad_words, seq.group.prompt)
        for token in seq.generated[sampler.accepted :]:
            sampler.accept(token)
        return sampler

    def _logits(self, plan: Plan, hidden: U8) -> F32:
        """Logits float32 [draws, V]; a hidden row that several sequences draw from goes through the output matrix once."""
        if len(plan.draws) == plan.decodes:
            return self._runner.logits(hidden[: plan.decodes])
        rows = np.concatenate([hidden, plan.saved[::-1]]) if plan.saved else hidden  # ~i counts saved rows from the end
        distinct = {row: order for order, row in enumerate(dict.fromkeys(plan.draw_rows))}
        logits = self._runner.logits(rows[list(distinct)])
        return logits if len(distinct) == len(plan.draws) else logits[[distinct[row] for row in plan.draw_rows]]

    def _score(self, jobs: list[ScoreJob]) -> list[Scores | None]:
        """All jobs' rows together, ``SCORE_ROWS`` at a time, then taken apart again."""
        rows = np.concatenate([view for job in jobs for view in job.rows])
        targets = np.array([target for job in jobs for target in job.targets], np.int32)
        most = max(job.top for job in jobs)
        parts = []
        for first in range(0, len(rows), SCORE_ROWS):
            logits = self._runner.logits(rows[first : first + SCORE_ROWS])
            parts.append(score(logits, targets[first : first + SCORE_ROWS], most))
        chosen = np.concatenate([part.chosen for part in parts])
        top_ids = np.concatenate([part.top_ids for part in parts])
        top = np.concatenate([part.top for part in parts])
        ends = np.cumsum([len(job.targets) for job in jobs])[:-1]
        split = zip(np.split(chosen, ends), np.split(top_ids, ends), np.split(top, ends), strict=True)
        return [Scores(*each) if np.isfinite(each[0]).all() else None for each in split]

