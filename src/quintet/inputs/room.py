"""Room for what tenants hold: bounded in all, and fair. Plain code over values."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from quintet.errors import Overloaded, TooManyRequests
from quintet.shares import exceeds_share


class Room:
    """So much of something, such as bytes, of which tenants hold parts.

    Args:
        most: that all tenants together may hold.
        what: they hold, for errors.
    """

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self._taken: Counter[str] = Counter()

    @contextlib.contextmanager
    def held(self, tenant: str, size: int) -> Iterator[None]:
        """Taken for a while.

        Raises:
            TooManyRequests, Overloaded: see ``take``.
        """
        self.take(tenant, size)
        try:
            yield
        finally:
            self.give(tenant, size)

    def take(self, tenant: str, size: int, mine: int = 0) -> None:
        """The tenant holds ``size`` more from now on, until that is given back with ``give``.

        Args:
            mine: how much of what the tenant holds is for this very request, which is not refused for that alone.

        Raises:
            TooManyRequests: the tenant holds some for other requests, and with this would hold more than it leaves.
            Overloaded: there is no room.
        """
        room, own = self._most - self._taken.total() - size, self._taken[tenant]
        if own > mine and exceeds_share(tenant, own, size, room):
            raise TooManyRequests(f"This API key has its share of {self._what}; try again later.")
        if room < 0:
            raise Overloaded(f"There is no room for more {self._what}; try again later.")
        self._taken[tenant] += size

    def give(self, tenant: str, size: int) -> None:
        """It is free again."""
        self._taken[tenant] -= size
        if not self._taken[tenant]:
            del self._taken[tenant]
