"""The connections that there are, and which of them go when there are too many.

A connection over which a request is answered stays. One that waits for a request has to give way to a newcomer, the one that waited longest
first, once it has had time for a request: so that whoever opens connections and says nothing keeps nobody out. Where all of them are at
work the newcomer is one too many: ``crowded``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

SPARE = 64
"""Connections over the limit that are taken all the same, each for one request: a probe is answered, anything else refused."""

GRACE_S = 1.0
"""Time that a connection has for a request, whatever others want."""

HURRY_S = 0.25
"""The same for one that is crowded, so that few places for them suffice."""


class Member(Protocol):
    """A connection."""

    def give_way(self) -> None:
        """Close: no request is being answered."""


_Member = TypeVar("_Member", bound=Member)


class Crowd(Generic[_Member]):
    """
    Args:
        most: connections, beside ``SPARE`` more.
        clock: seconds, monotonic.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most, self._clock = most, clock
        self._all: set[_Member] = set()
        self._waiting: dict[_Member, float] = {}  # since when, the longest first
        self._leaving: set[_Member] = set()  # were asked to give way, and are not over yet

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[_Member]:
        return iter(self._all)

    def has_room(self) -> bool:
        """Another connection may be taken. If not, some of those that wait give way, so that soon one may."""
        if len(self._all) < self._most + SPARE:
            return True
        self._dismiss(SPARE)
        return False

    def is_full(self) -> bool:
        """A newcomer is one too many, even if one of those that wait gives way."""
        if self._staying >= self._most:
            self._dismiss(1)
        return self._staying >= self._most

    def joined(self, member: _Member) -> None:
        """A connection was taken; it waits."""
        self._all.add(member)
        self.waits(member)

    def waits(self, member: _Member) -> None:
        """A connection waits for a request."""
        if member in self._all and member not in self._leaving:
            self._waiting[member] = self._clock()

    def works(self, member: _Member) -> None:
        """A connection has a request."""
        self._waiting.pop(member, None)

    def left(self, member: _Member) -> None:
        """A connection is over."""
        self._all.discard(member)
        self._leaving.discard(member)
        self._waiting.pop(member, None)

    @property
    def _staying(self) -> int:
        return len(self._all) - len(self._leaving)

    def _dismiss(self, most: int) -> None:
        """Have those give way that have waited longest, no more than ``most``."""
        late = self._clock() - GRACE_S
        for member, since in [*itertools.islice(self._waiting.items(), most)]:
            if since > late:
                return
            del self._waiting[member]
            self._leaving.add(member)
            member.give_way()
