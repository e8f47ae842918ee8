"""A step that fails is run again in parts, so that only the request which breaks it ends.

A step is one pass over many requests, and what one of them holds may break it: a control, a guide, a page. Which one it was is found by
halving, as ``git bisect`` does::

    A B C D fails  ->  A B runs, C D fails  ->  C fails and ends, D runs

That the others' bytes are what they would have been follows from how a step is made: nothing of it is applied before all of it was
computed; keys and values are written where the plan says, so that computing them again writes the same over them; no number depends
on what else is in the batch; samplers that go ahead with drafts are copies, which come to nothing with the step (``Stepper.run``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from quintet.backends.native.schedule.emit import FAILED
from quintet.backends.native.schedule.plan import Plan, Results
from quintet.backends.native.schedule.scheduler import Scheduler
from quintet.backends.native.wire.messages import Events
from quintet.backends.native.worker.step import Stepper, Work
from quintet.errors import counted

_log = logging.getLogger(__name__)


def run(
    plan: Plan,
    scheduler: Scheduler,
    stepper: Stepper,
    meanwhile: Callable[[Work], None] | None = None,
    take: Callable[[Plan, Results], Events] | None = None,
) -> Events:
    """Run a plan and take in what came of it, but for the requests with which it cannot be run: these end.

    Args:
        meanwhile: see ``Stepper.run``; called for each part that is run.
        take: takes in what came of a part; ``None`` = ``Scheduler.apply``.
    """
    try:
        results = stepper.run(plan, meanwhile)
    except Exception:
        parts = plan.halves()
        if parts is None:
            _log.exception("a step of %s of one request failed", counted(len(plan.segments), "sequence"))
            return scheduler.fail(plan, FAILED)
        _log.warning("a step of %s failed; it is run again in parts", counted(len(plan.segments), "sequence"))
        events: Events = {}
        for part in parts:
            events |= run(part, scheduler, stepper, meanwhile, take)
        return events
    return (take or scheduler.apply)(plan, results)
