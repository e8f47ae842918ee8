"""A pass that begins before what the one before it drew is taken in; see ``schedule/overlap``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from quintet.backends.native.core.types import Batch
from quintet.backends.native.schedule.overlap import Expected
from quintet.backends.native.schedule.plan import Plan, Results
from quintet.backends.native.schedule.scheduler import Scheduler
from quintet.backends.native.wire.messages import Events
from quintet.backends.native.worker.step import Stepper, Work
from quintet.errors import counted

_log = logging.getLogger(__name__)


class _Next(NamedTuple):
    """The step that is to follow a plan.

    Args:
        batch: what it computes, but for the tokens.
    """

    expected: Expected
    batch: Batch


class _Kept(NamedTuple):
    """A step that is not taken in yet."""

    plan: Plan
    results: Results


@dataclass(slots=True)
class _Beside:
    """What is to be done beside a pass, and what came of it.

    Args:
        planned: the step that the scheduler plans; ``None`` = it has not come to that.
        work: the same as the pass computes it; ``None`` = the pass computes something else.
    """

    plan: Callable[[], Plan]
    tell: Callable[[Events], None]
    planned: Plan | None = None
    work: Work | None = None


class EarlyPass:
    """Keeps the results of a step that goes on as expected until the next pass has begun.

    ``expect`` beside the pass of each plan, ``take`` what came of it; then, if it is ``ready`` and nobody came or left, ``go_on``, and else
    ``settle`` before anything else is done.
    """

    def __init__(self, scheduler: Scheduler, stepper: Stepper) -> None:
        self._scheduler = scheduler
        self._stepper = stepper
        self._plan: Plan | None = None  # the last one
        self._next: _Next | None = None
        self._kept: _Kept | None = None

    @property
    def ready(self) -> bool:
        """The next pass can begin."""
        return self._kept is not None

    def expect(self, work: Work) -> None:
        """Look a step ahead of a plan that is being computed, once: of one that is run again in parts, some are taken in already."""
        if work.plan is not self._plan:
            self._look_ahead(work, lambda: self._scheduler.expect(work.plan))

    def _look_ahead(self, work: Work, expect: Callable[[], Expected | None]) -> None:
        """Never raises: where it fails nothing begins early, and the pass beside it is as good as ever."""
        self._plan, self._next = work.plan, None
        try:
            expected = expect()
            if expected is not None:
                self._next = _Next(expected, self._stepper.after(work, grown=expected.grown))
        except Exception:
            _log.warning("what follows a step of %s could not be made", counted(len(work.plan.segments), "sequence"), exc_info=True)

    def take(self, plan: Plan, results: Results) -> Events:
        """Take in what came of a plan, or of a part of one, or keep it; nothing that is urgent is kept."""
        if plan is self._plan and self._next is not None and self._scheduler.follows(self._next.expected, results.tokens):
            self._kept = _Kept(plan, results)
            return {}
        return self._scheduler.apply(plan, results)

    def settle(self) -> Events:
        """Take in what was kept, if anything was."""
        kept, self._kept = self._kept, None
        return self._scheduler.apply(kept.plan, kept.results) if kept else {}

    def go_on(self, plan: Callable[[], Plan], tell: Callable[[Events], None]) -> tuple[Plan, Results | None]:
        """Compute what is expected, and meanwhile take in what was kept, plan, and tell of it.

        Returns:
            What was planned, and what came of it; ``None``: it is another thing than was expected, or it failed, and is still to be run.
        """
        assert self._kept is not None, "ready was not asked"
        assert self._next is not None, "results are kept only of a plan that something is expected to follow"
        following, tokens = self._next, self._kept.results.tokens
        self._next = None
        following.batch.tokens[:] = tokens
        beside = _Beside(plan, tell)
        try:
            hidden = self._stepper.compute(following.batch, lambda: self._work_beside(beside, following, tokens))
            if beside.work is not None:
                return beside.work.plan, self._stepper.finish(beside.work, hidden)
        except Exception:
            if beside.planned is None and self._kept is None:
                raise  # no request is to blame for it
            count = len(following.batch.lengths)
            _log.warning("a step of %s that was begun early failed; it is run again", counted(count, "sequence"), exc_info=True)
        if beside.planned is None:
            tell(self._settle_and_plan(beside))
        assert beside.planned is not None
        return beside.planned, None

    def _settle_and_plan(self, beside: _Beside) -> Events:
        events = self.settle()
        beside.planned = beside.plan()
        return events

    def _work_beside(self, beside: _Beside, following: _Next, tokens: list[int]) -> None:
        """What is done while the pass is computed; ``beside.work`` is made if that is what was planned."""
        events = self._settle_and_plan(beside)
        plan = beside.planned
        try:
            if plan is not None and following.expected.came_true(plan, tokens):
                prepared = Work(plan, plan.flatten(), following.batch)
                self._stepper.see(prepared)
                self._look_ahead(prepared, lambda: self._scheduler.expect_after(following.expected))
                beside.work = prepared
        finally:  # what is taken in is told, whatever becomes of the pass
            beside.tell(events)
