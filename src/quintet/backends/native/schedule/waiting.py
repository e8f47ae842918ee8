"""Sequences that wait for a slot: tenants take turns, then a tenant's requests, then these' sequences. Plain code over values."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from quintet.backends.native.schedule.sequence import Sequence


class WaitingQueue:
    """After a sequence was taken, its tenant goes behind the other tenants, and its request behind the tenant's others.

    So neither a request with many sequences nor a tenant with many requests delays others for long.
    """

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, OrderedDict[int, deque[Sequence]]] = OrderedDict()

    def __iter__(self) -> Iterator[Sequence]:
        return (seq for turns in self._tenants.values() for queue in turns.values() for seq in queue)

    @property
    def tenants(self) -> Iterator[str]:
        """Those who wait, in the order of their turns."""
        return iter(self._tenants)

    def favour(self, tenant: str) -> None:
        """Give the turn to a tenant that waits."""
        self._tenants.move_to_end(tenant, last=False)

    def push(self, seq: Sequence) -> None:
        """Add behind the sequences of its request."""
        self._queue(seq).append(seq)

    def push_front(self, seq: Sequence) -> None:
        """Add before everything of its tenant: it ran already, or continues work that was begun."""
        self._queue(seq).appendleft(seq)
        self._tenants[seq.group.tenant].move_to_end(seq.request_id, last=False)

    def head(self) -> Sequence | None:
        """The sequence whose turn it is."""
        return next(iter(next(iter(self._tenants.values())).values()))[0] if self._tenants else None

    def pop(self) -> Sequence:
        """Take the head; the next turns of its request and tenant come after those of all others."""
        tenant, turns = next(iter(self._tenants.items()))
        request_id, queue = next(iter(turns.items()))
        seq = queue[0]
        turns.move_to_end(request_id)
        self._tenants.move_to_end(tenant)
        self.remove(seq)
        return seq

    def remove(self, seq: Sequence) -> None:
        """Take out a sequence that is in the queue."""
        turns = self._tenants[seq.group.tenant]
        queue = turns[seq.request_id]
        queue.remove(seq)
        if not queue:
            del turns[seq.request_id]
        if not turns:
            del self._tenants[seq.group.tenant]

    def _queue(self, seq: Sequence) -> deque[Sequence]:
        return self._tenants.setdefault(seq.group.tenant, OrderedDict()).setdefault(seq.request_id, deque())
