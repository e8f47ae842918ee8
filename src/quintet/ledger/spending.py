"""What each key has spent when: sums in memory. Plain code over values.

By slots of five minutes for a week, then by days (UTC): so what comes back of a limit can be told nearly to the moment, and memory does
not grow with requests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

SLOT = 300
DAY = 86_400
FINE_DAYS = 8


class Spent(NamedTuple):
    """Tokens that a key has spent by a Unix time."""

    key: str
    time: float
    tokens: int


class Spending:
    """Sums of tokens.

    Args:
        now: Unix time.
    """

    def __init__(self, now: float) -> None:
        self._days: defaultdict[str, Counter[int]] = defaultdict(Counter)  # key -> day -> tokens
        self._slots: defaultdict[str, Counter[int]] = defaultdict(Counter)  # the same by slots, of the newest days
        self._newest = int(now // DAY)

    @property
    def fine(self) -> float:
        """The time from which on sums are by slots."""
        return float(self._first_fine * DAY)

    def add(self, key: str, time: float, tokens: int) -> None:
        """Tokens of a request that ended at a Unix time."""
        day = int(time // DAY)
        self._days[key][day] += tokens
        if day > self._newest:
            self._newest = day
            self._forget()
        if day >= self._first_fine:
            self._slots[key][int(time // SLOT)] += tokens

    def of(self, key: str) -> list[tuple[int, int]]:
        """(Unix time, tokens) of a key, in order.

        A sum stands at the end of its slot or day. So what comes back with time may come later than it should, and never sooner.
        """
        days = sorted(self._days.get(key, {}).items())
        slots = sorted(self._slots.get(key, {}).items())
        return [
            *(((day + 1) * DAY, tokens) for day, tokens in days if day < self._first_fine),
            *(((slot + 1) * SLOT, tokens) for slot, tokens in slots),
        ]

    def all(self) -> list[Spent]:
        """What gives the same sums, if it is added."""
        return [Spent(key, end - 1, tokens) for key in self._days for end, tokens in self.of(key)]

    @property
    def _first_fine(self) -> int:
        return self._newest - FINE_DAYS + 1

    def _forget(self) -> None:
        first = self.fine // SLOT
        for key, slots in self._slots.items():
            self._slots[key] = Counter({slot: tokens for slot, tokens in slots.items() if slot >= first})
