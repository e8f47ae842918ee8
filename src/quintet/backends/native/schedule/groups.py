"""Who computes a prompt for whom: leaders, forks, and snapshots for those that found no place. Plain code over values.

While a group's leader computes the prompt, its forks wait outside the queue. When it is done they fork in the same step, as far as
there is room; for the others a snapshot of the prompt is held, and they queue. A leader that ends early is succeeded by a
fork. A snapshot can be dropped for its pages: then one of those who wait leads again.
"""

from __future__ import annotations

from quintet.backends.native.core.types import U8
from quintet.backends.native.schedule.kv import KvCache
from quintet.backends.native.schedule.sequence import Group, Sequence, Snapshot
from quintet.backends.native.schedule.waiting import WaitingQueue


class Groups:
    """The groups' moves between queue, forks and snapshots."""

    def __init__(self, kv: KvCache, waiting: WaitingQueue) -> None:
        self._kv = kv
        self._waiting = waiting
        self._holding: list[Group] = []

    @property
    def snapshots(self) -> list[Snapshot]:
        """All that are held."""
        return [group.snapshot for group in self._holding if group.snapshot]

    def begin(self, group: Group) -> None:
        """Queue a new group: its first member, for all."""
        self._waiting.push(_lead(group, group.members))

    def computed(self, group: Group, leader: Sequence, row: U8) -> None:
        """The leader's pages hold the prompt, and ``row`` is its last hidden row: keep both for the forks that are left."""
        group.leader = None
        if group.forks:
            group.snapshot = self._kv.snapshot(leader, row)
            self._holding.append(group)
            for fork in reversed(group.forks):
                self._waiting.push_front(fork)
            group.forks = []

    def started(self, group: Group) -> None:
        """A member left the queue: release the snapshot if nobody waits for it any more."""
        if group.snapshot and not group.unstarted:
            self._release(group, group.snapshot)

    def ended(self, seq: Sequence) -> None:
        """A member is gone."""
        group = seq.group
        if seq is group.leader:
            group.leader = None
            if group.forks:
                self._waiting.push_front(_lead(group, group.forks))
        else:
            self.started(group)

    def shed(self) -> bool:
        """Give the pages of one snapshot back: those who wait for it compute the prompt again, once. False if there is none."""
        if not self._holding:
            return False
        group = self._holding[-1]
        members = group.unstarted
        for seq in members:
            self._waiting.remove(seq)
        if group.snapshot:
            self._release(group, group.snapshot)
        self._waiting.push_front(_lead(group, members))
        return True

    def _release(self, group: Group, snapshot: Snapshot) -> None:
        self._kv.pool.release(snapshot.pages)
        group.snapshot = None
        self._holding.remove(group)


def _lead(group: Group, members: list[Sequence]) -> Sequence:
    group.leader, group.forks = members[0], members[1:]
    return members[0]
