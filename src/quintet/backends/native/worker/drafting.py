"""The draft model at work: between the plan of a step and the step, it drafts for the sequences that the plan asks it for.

One token at a time for all of them, each drawn as the target would draw it: at the same position with the same seed, controls, history and
guide. So where both models think alike they draw alike, also at a temperature::

    plan      A asks for 4, B for 4         room for 4 tokens after each one's next
    read      A: 1 token, B: 40             what the draft model has not seen of them; of a long prompt a piece in each step
    draft     A: the  cat  sat              until it is not worth going on: it is unsure, or has all that was asked for
              B: on   the
    step      as with any draft

What breaks here breaks no request: a sequence that it cannot draft for goes on without.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.core.types import F32, U8, U32, Batch, Runner, Sampler, Samplers, Shortener
from quintet.backends.native.draft.columns import Columns
from quintet.backends.native.draft.costs import Costs
from quintet.backends.native.draft.drafter import judged
from quintet.backends.native.draft.thinking_budget import ThinkingBudget
from quintet.backends.native.schedule.draft_model import DraftModel
from quintet.backends.native.schedule.draft_pages import DraftPages, Reading
from quintet.backends.native.schedule.pages import BlockTables, PagePool
from quintet.backends.native.schedule.plan import Plan, Segment
from quintet.backends.native.schedule.sequence import Sequence
from quintet.backends.native.schedule.speculation import SEQUENCES
from quintet.backends.native.schedule.step_budget import STEP_S
from quintet.backends.native.worker.aside import Aside
from quintet.backends.native.worker.masks import SLOW_S
from quintet.errors import counted
from quintet.guides.matcher import Matcher

READS = (16, 32, 64, 128, 256)
"""Tokens of a piece that is read at once: as many as take ``STEP_S``, or the least."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Job:
    """A sequence that is drafted for in this step.

    Args:
        generated: tokens that it had generated before.
        next: to be read by the draft model, from ``reading.computed`` on.
        ready: the draft model reads up to its end now, so it can draft.
        probabilities: that the draft model gave each token of the draft.
        right: probability that all of the draft is.
        mask_s: processor time of the masks of the draft.
    """

    segment: Segment
    reading: Reading
    generated: int
    next: list[int]
    ready: bool
    sampler: Sampler | None = None
    follower: Matcher | ThinkingBudget | None = None
    draft: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    right: float = 1.0
    mask_s: float = 0.0

    @property
    def seq(self) -> Sequence:
        return self.segment.seq


def measure(runner: Runner, costs: Costs, clock: Callable[[], float]) -> None:
    """Have a runner that nobody uses yet compute steps of one token and of a page, to know what they cost before the first draft."""
    for count in (1, min(PAGE, runner.context)) * 2:
        zero, tokens = np.zeros(1, np.int32), np.zeros(count, np.int32)
        batch = Batch(tokens, np.array([count], np.int32), zero, zero[None], np.arange(count, dtype=np.int32))
        begin = clock()
        runner.logits(runner.forward(batch))
        costs.learn(count, clock() - begin)


def draft_model(draft: Runner, target: Runner, pages: int, clock: Callable[[], float]) -> DraftModel:
    """What is known of a draft model with so many pages before its first draft: what its steps cost."""
    context = min(draft.context, pages * PAGE)
    read = DraftPages(PagePool(pages), BlockTables(SEQUENCES, -(-context // PAGE)))
    model = DraftModel(draft.vocab, context, read, narrow=draft.vocab < target.vocab)
    measure(draft, model.policy.drafting, clock)
    return model


class Drafting:
    """Used in the worker's thread.

    Args:
        model: what the plan asked by.
        vocab: of the target, which the samplers draw from.
        sampler: a sequence's own, having seen all of its tokens; it is not changed.
        eos_ids: ids that end a sequence; no draft goes as far.
        clock: seconds, monotonic; decides how far to draft, and changes no token.
    """

    def __init__(
        self,
        runner: Runner,
        model: DraftModel,
        vocab: int,
        samplers: Samplers,
        sampler: Callable[[Sequence], Sampler],
        eos_ids: frozenset[int],
        clock: Callable[[], float],
    ) -> None:
        self._runner, self._model, self._vocab = runner, model, vocab
        self._samplers, self._sampler, self._eos_ids, self._clock = samplers, sampler, eos_ids, clock
        self._columns = Columns(runner.vocab, halves=isinstance(runner, Shortener))
        self._wide: F32 = np.zeros((0, vocab), np.float32)  # logits of fewer tokens than the target has
        self._jobs: list[_Job] = []
        self._aside = Aside()
        self._seconds = 0.0
        self.drafted = self.accepted = 0
        """Tokens of the draft model, and those that were drawn too."""

    def fill(self, plan: Plan) -> None:
        """Draft for the segments that ask for it; what is drafted becomes part of the plan."""
        asking = [segment for segment in plan.segments if segment.ask]
        self._jobs, self._seconds = [], 0.0
        self._model.pages.make_room([segment.seq for segment in asking])
        if not asking:
            return
        begin = self._clock()
        try:
            self._begin(asking)
            self._draft(len(plan.segments))
        except Exception:
            _log.exception("the draft model broke; nothing more is drafted by it for %s", counted(len(asking), "sequence"))
            for segment in asking:
                segment.seq.acceptance_rate = 0.0
                self._model.pages.forget(segment.seq)
            self._jobs = []
        for job in self._jobs:
            job.reading.guess = job.draft.copy()
            self._model.pages.publish(job.seq, job.reading)
            plan.lengthen(job.segment, job.draft)
        self._seconds = self._clock() - begin

    def learn(self, plan: Plan, seconds: float) -> None:
        """The step has been applied, and took so long: what became of the drafts, and what they cost."""
        policy = self._model.policy
        drafted = accepted = 0
        for job in self._jobs:
            drawn = job.seq.generated[job.generated :]
            self._columns.learn(drawn)
            right, wrong = judged(job.draft, drawn)
            self._model.learn(job.seq, job.probabilities, right, wrong=wrong)
            drafted, accepted = drafted + len(job.draft), accepted + right
        self.drafted, self.accepted = self.drafted + drafted, self.accepted + accepted
        if plan.decodes:
            policy.settle(len(plan.segments), plan.tokens, drafted, accepted, self._seconds, seconds)
        self._jobs = []

    def shed(self) -> None:
        """Give back the memory of what is kept for requests to come."""
        self._runner.drop_pages(self._model.pages.shed())

    def check(self) -> None:
        """Verify that no page is lost.

        Raises:
            BrokenInvariantError: naming what is wrong.
        """
        self._model.pages.check()

    # -- reading and drafting ---------------------------------------------------------------------------------------------------

    def _begin(self, asking: list[Segment]) -> None:
        """What each reads first; of those that would read the same page, one does."""
        left = self._most_read()
        pages = set[bytes]()  # that are being read
        for segment in asking:
            seq = segment.seq
            reading = self._model.pages.open(seq, segment.ask)
            if reading is None:
                continue
            page = self._model.pages.next_page(seq, reading)
            if page and page in pages:
                continue
            count = min(seq.length - reading.computed, left)
            pages.add(page)
            left -= count
            if count:
                reads = seq.slice(reading.computed, reading.computed + count)
                job = _Job(segment, reading, len(seq.generated), reads, ready=reading.computed + count == seq.length)
                if job.ready:
                    job.sampler, job.follower = self._sampler(seq).copy(), self._follower(seq)
                self._jobs.append(job)

    def _most_read(self) -> int:
        """Tokens that are read in a step, of all sequences together."""
        cost = self._model.policy.drafting.of
        return next((count for count in reversed(READS) if cost(count) <= STEP_S), READS[0])

    def _follower(self, seq: Sequence) -> Matcher | ThinkingBudget | None:
        matcher = seq.matcher
        if not seq.guided or matcher is None:
            return None
        ahead = matcher.copy()
        for token in seq.generated[matcher.consumed :]:
            ahead.consume(token)
        return ahead

    def _draft(self, sequences: int) -> None:
        """Read and draw, a token at a time, for as long as it is worth it for any of them.

        Args:
            sequences: that decode in this step.
        """
        model, policy = self._model, self._model.policy
        jobs = self._jobs
        while jobs:
            begin, rows = self._clock(), sum(len(job.next) for job in jobs)
            logits = self._read(jobs)
            ready = [job for job in jobs if job.ready]
            drawn = self._draw(ready, logits) if ready else []
            policy.drafting.learn(rows, self._clock() - begin)
            open_ = [job for job, drew in zip(ready, drawn, strict=True) if drew and len(job.draft) < job.segment.ask]
            jobs = [job for job in open_ if policy.goes_on(job.right, model.acceptance_rate(job.seq), len(open_), sequences)]
            for job in jobs:
                job.next = job.draft[-1:]

    def _read(self, jobs: list[_Job]) -> F32:
        """Compute what each reads next; logits float32 [·, vocab] after the last token of those that are ready."""
        lengths = np.array([len(job.next) for job in jobs], np.int32)
        ready = np.array([job.ready for job in jobs], bool)
        batch = Batch(
            tokens=np.array([token for job in jobs for token in job.next], np.int32),
            lengths=lengths,
            starts=np.array([job.reading.computed for job in jobs], np.int32),
            tables=self._model.pages.gather([job.reading for job in jobs]),
            rows=(np.cumsum(lengths, dtype=np.int32) - 1)[ready].astype(np.int32),
        )
        hidden = self._runner.forward(batch)
        for job in jobs:
            job.reading.computed += len(job.next)
        return self._fitted(self._logits(hidden)) if len(hidden) else self._wide[:0]

    def _logits(self, hidden: U8) -> F32:
        """Of the tokens that are worth it."""
        runner, count = self._runner, self._columns.count
        return runner.first_logits(hidden, count) if isinstance(runner, Shortener) else runner.logits(hidden)

    def _fitted(self, logits: F32) -> F32:
        """As wide as the target's: files pad vocabularies to different sizes, and of a draft's not all are computed."""
        rows, width = logits.shape
        if width >= self._vocab:
            return logits[:, : self._vocab]
        if len(self._wide) < rows:
            self._wide = np.empty((rows, self._vocab), np.float32)
        self._wide[:rows, :width] = logits
        self._wide[:rows, width:] = -np.inf
        return self._wide[:rows]

    def _draw(self, ready: list[_Job], logits: F32) -> list[bool]:
        """A token more for each, where there is one that it may go on with; whether there is."""
        masks, going = self._masks(ready)
        samplers = [job.sampler for job in ready if job.sampler is not None]
        positions = np.array([job.seq.length + len(job.draft) for job in ready], np.uint64)
        drawn = self._samplers.draw(logits, samplers, positions, masks, alternatives=np.zeros(len(ready), np.int32))
        assert drawn.scores is not None, "asked for"
        chosen = drawn.scores.chosen.tolist()
        for at, (job, token) in enumerate(zip(ready, drawn.tokens.tolist(), strict=True)):
            going[at] = going[at] and token >= 0 and not job.seq.ends_with(token, self._eos_ids)
            going[at] = going[at] and (job.follower is None or job.follower.consume(token))
            if not going[at] or job.sampler is None:
                continue
            job.sampler.accept(token)
            probability = math.exp(min(chosen[at], 0.0))
            job.draft.append(token)
            job.probabilities.append(probability)
            job.right *= self._model.policy.confidence.of(probability)
        return going

    def _masks(self, ready: list[_Job]) -> tuple[U32 | None, list[bool]]:
        """What each may draw, uint32 [·, words], and whether that is anything; ``None``: nobody has a guide."""
        going = [True] * len(ready)
        if not any(job.follower for job in ready):
            return None, going
        masks = np.full((len(ready), -(-self._vocab // 32)), 0xFFFFFFFF, np.uint32)
        for at, job in enumerate(ready):
            if job.follower is not None:
                mask = masks[at].copy()  # not where others are: one that is late is written to later
                found = self._aside.ask(partial(job.follower.fill, mask))
                job.mask_s += found[1] if found else math.inf
                job.seq.foreseen = job.mask_s <= SLOW_S
                going[at] = found is not None and found[0] and job.seq.foreseen
                if going[at]:  # else what is drawn is not used
                    masks[at] = mask
        return masks, going
