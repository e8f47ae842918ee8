"""How many tokens each key has spent since when: sums in memory. Plain code over values.

By minutes for two days, then by days (UTC): so a sum from a day's beginning on is exact, and memory does not grow with requests.
"""

from __future__ import annotations

from collections import Counter, defaultdict

SLOT = 60
DAY = 86_400
FINE_DAYS = 2


class Spending:
    """Sums of tokens.

    Args:
        now: Unix time.
    """

    def __init__(self, now: float) -> None:
        self._days: defaultdict[str, Counter[int]] = defaultdict(Counter)  # key -> day -> tokens
        self._slots: defaultdict[str, Counter[int]] = defaultdict(Counter)  # the same by minutes, of the newest days
        self._newest = int(now // DAY)

    @property
    def fine(self) -> float:
        """The time from which on sums are by minutes."""
        return float((self._newest - FINE_DAYS + 1) * DAY)

    def add(self, key: str, time: float, tokens: int) -> None:
        """Tokens of a request that arrived at a Unix time."""
        day = int(time // DAY)
        self._days[key][day] += tokens
        if day > self._newest:
            self._newest = day
            self._forget()
        if day > self._newest - FINE_DAYS:
            self._slots[key][int(time // SLOT)] += tokens

    def since(self, key: str, since: float) -> int:
        """Tokens of a key from a Unix time on: from the beginning of its minute, or of its day if that was some days ago.

        So it may be more than was spent, and never less.
        """
        day = int(since // DAY)
        if day <= self._newest - FINE_DAYS:
            return sum(tokens for one, tokens in self._days.get(key, Counter()).items() if one >= day)
        slot = int(since // SLOT)
        return sum(tokens for one, tokens in self._slots.get(key, Counter()).items() if one >= slot)

    def _forget(self) -> None:
        first = self.fine // SLOT
        for key, slots in self._slots.items():
            self._slots[key] = Counter({slot: tokens for slot, tokens in slots.items() if slot >= first})
