"""A pass that begins before what the one before it drew is taken in; see ``schedule/overlap``."""

from __future__ import annotations

import logging
from collections.abc import Callable

from quintet.backends.native.core.types import Batch
from quintet.backends.native.schedule.overlap import Expected
from quintet.backends.native.schedule.plan import Plan, Results
from quintet.backends.native.schedule.scheduler import Scheduler
from quintet.backends.native.wire.messages import Events
from quintet.backends.native.worker.step import Stepper, Work

_log = logging.getLogger(__name__)


class EarlyPass:
    """Keeps the results of a step that goes on as expected until the next pass has begun.

    ``expect`` beside the pass of each plan, ``take`` what came of it; then, if it is ``ready`` and nobody came or left, ``go_on``, and else
    ``settle`` before anything else is done.
    """

    def __init__(self, scheduler: Scheduler, stepper: Stepper) -> None:
        self._scheduler = scheduler
        self._stepper = stepper
        self._plan: Plan | None = None  # the last one
        self._next: tuple[Expected, Batch] | None = None  # what is to follow it, as it is computed, but for the tokens
        self._kept: tuple[Plan, Results] | None = None

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
                self._next = expected, self._stepper.after(work, grown=expected.grown)
        except Exception:
            _log.warning("what follows a step of %d sequences could not be made", len(work.plan.segments), exc_info=True)

    def take(self, plan: Plan, results: Results) -> Events:
        """Take in what came of a plan, or of a part of one, or keep it; nothing that is urgent is kept."""
        if plan is self._plan and self._next is not None and self._scheduler.follows(self._next[0], results.tokens):
            self._kept = plan, results
            return {}
        return self._scheduler.apply(plan, results)

    def settle(self) -> Events:
        """Take in what was kept, if anything was."""
        kept, self._kept = self._kept, None
        return self._scheduler.apply(*kept) if kept else {}

    def go_on(self, plan: Callable[[], Plan], tell: Callable[[Events], None]) -> tuple[Plan, Results | None]:
        """Compute what is expected, and meanwhile take in what was kept, plan, and tell of it.

        Returns:
            What was planned, and what came of it; ``None``: it is another thing than was expected, or it failed, and is still to be run.
        """
        assert self._kept is not None, "ready was not asked"
        assert self._next is not None, "results are kept only of a plan that something is expected to follow"
        (_, kept), (expected, batch), self._next = self._kept, self._next, None
        batch.tokens[:] = kept.tokens
        planned: list[Plan] = []
        work: Work | None = None

        def settle() -> Events:
            events = self.settle()
            planned.append(plan())
            return events

        def beside() -> None:
            nonlocal work
            events = settle()
            try:
                if expected.came_true(planned[0], kept.tokens):
                    prepared = Work(planned[0], planned[0].flatten(), batch)
                    self._stepper.see(prepared)
                    self._look_ahead(prepared, lambda: self._scheduler.expect_after(expected))
                    work = prepared
            finally:  # what is taken in is told, whatever becomes of the pass
                tell(events)

        try:
            hidden = self._stepper.compute(batch, beside)
            if work is not None:
                return planned[0], self._stepper.finish(work, hidden)
        except Exception:
            if not planned and self._kept is None:
                raise  # no request is to blame for it
            _log.warning("a step of %d sequences that was begun early failed; it is run again", len(batch.lengths), exc_info=True)
            if not planned:
                tell(settle())
        return planned[0], None
