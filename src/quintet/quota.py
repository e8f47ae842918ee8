"""What a key may use, in numbers, and where it stands. Plain code over values."""

from __future__ import annotations

import enum
from dataclasses import dataclass

MINUTE, DAY = 60.0, 86_400.0
"""Seconds of a limit's window."""

MOST = 2**53
"""The largest limit: up to it, counts are exact as floats too."""


class Unit(enum.Enum):
    """What a limit counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Limits:
    """Most that a key may use; 0 = no limit.

    Args:
        parallel: completions at once.
        budget: tokens in all, since the key was made.
    """

    requests_per_minute: int = 0
    requests_per_day: int = 0
    tokens_per_minute: int = 0
    tokens_per_day: int = 0
    parallel: int = 0
    budget: int = 0

    @property
    def lasting(self) -> bool:
        """One of them is to go on over a restart, which only a ledger can have it do."""
        return bool(self.tokens_per_day or self.budget)


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Meter:
    """One limit, and how much of it is left.

    Args:
        window: seconds in which an exhausted limit is whole again; 0 = never, as of a budget.
        reset: seconds until it is whole again, if nothing more is used.
    """

    unit: Unit
    window: float
    limit: int
    remaining: int
    reset: float

    @property
    def per(self) -> str:
        """The window's name: ``minute``, ``day``, or nothing for a budget."""
        return {MINUTE: "minute", DAY: "day"}.get(self.window, "")
