"""Sequences that wait for a slot: tenants take turns, then a tenant's requests, then these' sequences. Plain code over values.

Turns are fair queueing with a clock of its own (S. J. Golestani, "A Self-Clocked Fair Queueing Scheme", 1994): whoever comes to wait, or
has had a turn and goes on waiting, gets the tag ``now + 1 / weight``, the least tag is next, and ``now`` is the tag of the last turn. So a
tenant of weight 4 has four turns for each one of weight 1, and comes before it where both begin to wait. It keeps nobody waiting for ever:
those who join later have greater tags as ``now`` grows. With equal weights it is a round robin.

Tenants of weight 0 are in the background: they come after all others, and take turns among themselves by a clock of their own.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from quintet.backends.native.schedule.sequence import Sequence

_ROUND = 2520
"""Stands for 1 in tags: divisible by 1 to 10, so that these weights are exact."""


class Asker(Protocol):
    """Whose turn it may be."""

    @property
    def tenant(self) -> str: ...
    @property
    def weight(self) -> int: ...


class Waits(Protocol):
    """A sequence, as far as its place in the queue goes."""

    @property
    def request_id(self) -> int: ...
    @property
    def group(self) -> Asker: ...


S = TypeVar("S", bound=Waits)


@dataclass(slots=True, eq=False)
class _Tenant(Generic[S]):
    """One who waits, with the sequences of each of its requests."""

    name: str
    weight: int
    background: bool
    tag: int = 0
    requests: OrderedDict[int, deque[S]] = field(default_factory=OrderedDict)

    @property
    def turn(self) -> tuple[bool, int]:
        """The least is next."""
        return self.background, self.tag


class FairQueue(Generic[S]):
    """The sequences that wait, in the order of their turns.

    After a sequence was taken, its tenant goes behind others as its weight has it, and its request behind the tenant's others. So
    neither a request with many sequences nor a tenant with many requests delays others for long.
    """

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant[S]] = {}
        self._turns: list[_Tenant[S]] = []  # the same, by their tags; of equal ones who came first
        self._favoured: _Tenant[S] | None = None  # it comes before them all
        self._now = [0, 0]  # of both clocks, that of the background last

    def __iter__(self) -> Iterator[S]:
        return (seq for tenant in self._turns for queue in tenant.requests.values() for seq in queue)

    @property
    def tenants(self) -> Iterator[str]:
        """Those who wait, in the order of their tags; of the background only if there are no others."""
        return (tenant.name for tenant in self._turns if tenant.background is self._turns[0].background)

    def favour(self, name: str) -> None:
        """Give the turn to a tenant that waits. It counts like any turn: else who is favoured again and again would hold up the others."""
        self._favoured = self._tenants[name]

    def push(self, seq: S) -> None:
        """Add behind the sequences of its request."""
        self._queue(seq).append(seq)

    def push_front(self, seq: S) -> None:
        """Add before everything of its tenant: it ran already, or continues work that was begun."""
        self._queue(seq).appendleft(seq)
        self._tenants[seq.group.tenant].requests.move_to_end(seq.request_id, last=False)

    def head(self) -> S | None:
        """The sequence whose turn it is."""
        return next(iter(self._next().requests.values()))[0] if self._turns else None

    def pop(self) -> S:
        """Take the head; the next turns of its request and tenant come after those of others."""
        tenant = self._next()
        self._favoured = None
        self._turns.remove(tenant)
        request_id, queue = next(iter(tenant.requests.items()))
        tenant.requests.move_to_end(request_id)
        self._now[tenant.background] = max(self._now[tenant.background], tenant.tag)
        self._line_up(tenant)
        seq = queue[0]
        self.remove(seq)
        return seq

    def remove(self, seq: S) -> None:
        """Take out a sequence that is in the queue."""
        tenant = self._tenants[seq.group.tenant]
        queue = tenant.requests[seq.request_id]
        queue.remove(seq)
        if not queue:
            del tenant.requests[seq.request_id]
        if not tenant.requests:
            del self._tenants[tenant.name]
            self._turns.remove(tenant)
            self._favoured = None if self._favoured is tenant else self._favoured

    def _next(self) -> _Tenant[S]:
        first = self._turns[0]
        return self._favoured if self._favoured is not None and self._favoured.background is first.background else first

    def _queue(self, seq: S) -> deque[S]:
        name = seq.group.tenant
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant(name, seq.group.weight, seq.group.weight == 0)
            self._line_up(tenant)
        tenant.weight = seq.group.weight  # as it is now, from its next turn on
        return tenant.requests.setdefault(seq.request_id, deque())

    def _line_up(self, tenant: _Tenant[S]) -> None:
        tenant.tag = self._now[tenant.background] + _ROUND // (tenant.weight or 1)
        insort(self._turns, tenant, key=lambda waiting: waiting.turn)


class WaitingQueue(FairQueue[Sequence]):
    """Of the native engine's sequences."""
