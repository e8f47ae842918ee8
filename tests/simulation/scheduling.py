"""What the scheduler promises, checked inside the real worker: no page, slot or row is lost, and no tenant is passed over.

The fairness bound follows from the queue's rule (``schedule/waiting``): whoever is given a place goes behind the others, as far as its
weight has it, and who has nothing in the batch comes before those who have. So **while a tenant of weight w waits with nothing in the
batch, another of weight v is given at most ⌈v / w⌉ places from the queue before it**, whatever any of them asks for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tests.simulation.clock import Violation

from quintet.backends.native.schedule.pages import BrokenInvariantError
from quintet.backends.native.schedule.scheduler import Scheduler
from quintet.backends.native.schedule.sequence import Sequence
from quintet.backends.native.schedule.waiting import WaitingQueue
from quintet.backends.native.worker.step import Stepper
from quintet.backends.native.worker.worker import Worker

if TYPE_CHECKING:
    from tests.simulation.invariants import Watch

CHECK_EVERY = 16
"""Turns between two looks at every page; what leaks stays leaked."""


class WatchedQueue(WaitingQueue):
    """See ``WaitingQueue``, whose place it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.running: Iterable[Sequence] = ()
        self._passed: defaultdict[str, Counter[str]] = defaultdict(Counter)  # who waits with nothing running -> who was given a place

    def pop(self) -> Sequence:
        running = {seq.group.tenant for seq in self.running}
        for tenant in [tenant for tenant in self._passed if tenant in running]:
            del self._passed[tenant]
        waiting = {tenant.name: tenant.weight for tenant in self._turns if tenant.name not in running}
        seq = super().pop()
        taken = seq.group.tenant
        self._passed.pop(taken, None)
        for tenant, weight in waiting.items():
            if tenant != taken:
                self._passed[tenant][taken] += 1
                if (places := self._passed[tenant][taken]) > -(-seq.group.weight // weight):
                    raise Violation(f"fairness: {taken} was given {places} places while {tenant} waited with nothing in the batch")
        return seq

    def remove(self, seq: Sequence) -> None:
        super().remove(seq)
        if seq.group.tenant not in self.tenants:
            self._passed.pop(seq.group.tenant, None)


class WatchedWorker(Worker):
    """A worker that is looked at after each of its turns."""

    def __init__(self, watch: Watch, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._watch = watch
        self._scheduler: Scheduler | None = None
        self._count = 0

    @property
    def live(self) -> int:
        """Sequences that have not ended."""
        return self._scheduler.live if self._scheduler else 0

    def _load(self) -> tuple[Scheduler, Stepper]:
        self._scheduler, stepper = super()._load()
        queue = self._scheduler._queues.waiting
        assert isinstance(queue, WatchedQueue)
        queue.running = self._scheduler._queues.running
        self._tables, self._slots = self._scheduler._queues._kv.tables, self._config.running_limit
        return self._scheduler, stepper

    def _turn(self, scheduler: Scheduler, stepper: Stepper) -> None:
        super()._turn(scheduler, stepper)
        self._count += 1
        if not scheduler.live or self._count % CHECK_EVERY == 0:
            self.check()

    def check(self) -> None:
        """
        Raises:
            Violation: something is lost.
        """
        if self._scheduler is None:
            return
        try:
            self._scheduler.check()
        except BrokenInvariantError as error:
            raise Violation(f"pages: {error}") from error
        if self._drafting is not None:
            try:
                self._drafting.check()
            except BrokenInvariantError as error:
                raise Violation(f"pages: the draft model's: {error}") from error
        _require(len(self._tables._free) + self._scheduler.running == self._slots, "pages: a slot is lost, or held twice")
        if not self._scheduler.live:
            _require(not self._pool.state.used, "pages: some are held, and nobody is there")
            _require(not self._scheduler._queues.groups.snapshots, "pages: a snapshot is kept for nobody")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)
