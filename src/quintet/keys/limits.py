"""What keys have used, and whether they may use more. Plain code over values: no clock, time is an argument.

Every limit is a leaky bucket. What was used drains away evenly, a whole limit in a window, so there is no instant at which a window ends
and a double burst fits around. That is how the providers count where they say so (Cerebras: "We use the token bucketing algorithm for rate
limiting, which means your capacity replenishes continuously rather than resetting at fixed intervals"), and what OpenAI's and Together's
resets mean ("The time until the rate limit resets to its initial state").

Tokens are not known before they are computed, so they are reserved, then settled::

    open      a completion comes: a place among the key's parallel ones, and a request, both held
    count     more requests, where each sample counts as one
    reserve   as many tokens as it can come to at most: held back, and not drained while it runs
    begin     its work begins: its requests are used
    settle    the held tokens are let go, those that were computed are used; again with what has come since

Each of these either takes all it asks for or nothing, without a moment in which others could come between: of 200 requests at once, with
credit for 10, 10 are admitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol

from quintet.errors import EngineFailed, OverLimit, Overloaded, TooManyRequests, counted
from quintet.keys.key import Key
from quintet.quota import DAY, MINUTE, Limits, Meter, Unit

_TURNED_AWAY = TooManyRequests | Overloaded | EngineFailed
"""What refuses a completion, before its work begins, that may come again as it is: it has used no request."""


class Book(Protocol):
    """Who remembers what keys, by their ids, have used of tokens, also before this process began, and beside it."""

    def spent(self, key: str) -> Iterable[tuple[float, int]]:
        """(Unix time, tokens) in order; each no sooner than it was used."""

    def elsewhere(self) -> Iterable[tuple[str, int]]:
        """What was used in other processes since this was last asked: (key, tokens)."""


_ROUNDING = 1e-6
"""Far less than anything that is counted: what has drained for just as long as it should must not be missing by a last bit."""

_ASK_AGAIN_S = 1.0
"""Where a budget would suffice if what is held for others were let go, which may be soon."""


class Bucket:
    """A limit and what was used of it.

    Args:
        window: seconds in which a limit's worth drains away; 0 = it stays.
    """

    def __init__(self, unit: Unit, window: float, limit: int) -> None:
        self.unit, self.window, self.limit = unit, window, limit
        self.held = 0
        self._used = 0.0
        self._at = -math.inf  # when so much was used

    @property
    def lasting(self) -> bool:
        """What it counts is in the ledger, and goes on over a restart."""
        return self.unit is Unit.TOKENS and self.window != MINUTE

    def use(self, amount: int, now: float) -> None:
        """Count ``amount`` as used."""
        self._used = self._drained(now) + amount
        self._at = now

    def recall(self, amount: int, at: float) -> None:
        """Count what was used at a time before this; from the oldest on. It was let in, so it never was more than the limit at once."""
        self.use(amount, at)
        self._used = min(self._used, self.limit) if self.window else self._used

    def left(self, now: float) -> float:
        """What may be used now; below 0 where a limit was lowered, or more came than was held for it."""
        return self.limit - self.held - self._drained(now)

    def wait(self, amount: int, now: float) -> float | None:
        """Seconds until ``amount`` is left, if nothing more is used; ``None`` = that never comes."""
        missing = amount - self.left(now)
        if missing <= _ROUNDING:
            return 0.0
        if self.window and amount <= self.limit:
            return missing * self.window / self.limit
        return _ASK_AGAIN_S if missing <= self.held and not self.window else None

    def meter(self, now: float) -> Meter:
        """Where it stands."""
        left = self.left(now)
        reset = (self.limit - left) * self.window / self.limit
        return Meter(self.unit, self.window, self.limit, max(0, int(left + _ROUNDING)), reset)

    def _drained(self, now: float) -> float:
        return max(0.0, self._used - (now - self._at) * self.limit / self.window) if self.window else self._used


class Account:
    """What one key has used. Its limits may change while it is in use; what was used stays."""

    def __init__(self) -> None:
        self.running = 0
        self.limits = Limits()
        self.buckets: dict[tuple[Unit, float], Bucket] = {}

    def of(self, unit: Unit) -> list[Bucket]:
        """The buckets that count ``unit``."""
        return [bucket for bucket in self.buckets.values() if bucket.unit is unit]


class Limiter:
    """The accounts of all keys.

    Args:
        parallel: completions at once of a key that has no such limit of its own; 0 = as many as it likes.
        clock: seconds, monotonic: a jump of the wall clock moves no window.
        now: Unix time in seconds; only to read ``book``.
        book: ``None`` = nobody keeps one.
    """

    def __init__(self, parallel: int, clock: Callable[[], float], now: Callable[[], float], book: Book | None) -> None:
        self._parallel, self._clock, self._now, self._book = parallel, clock, now, book
        self._accounts: dict[str, Account] = {}

    def open(self, key: Key, *, place: bool = True) -> Lease:
        """Begin a completion. The lease is a context manager; leaving it gives back what it holds.

        Args:
            place: it takes one among the key's parallel ones.

        Raises:
            OverLimit: there is no request left, or not one token.
            TooManyRequests: as many run as may at once.
        """
        account = self._account(key)
        most = key.limits.parallel or self._parallel if place else 0
        if most and account.running >= most:
            raise TooManyRequests(f"At most {counted(most, 'completion')} at once.")
        lease = Lease(account, self._clock, int(place))
        lease.check(Unit.TOKENS, 1)
        lease.count(1)
        account.running += lease.places
        return lease

    def meters(self, key: Key) -> list[Meter]:
        """Where a key stands."""
        now = self._clock()
        return [bucket.meter(now) for bucket in self._account(key).buckets.values()]

    def _account(self, key: Key) -> Account:
        self._hear()
        account = self._accounts.setdefault(key.id, Account())
        if account.limits != key.limits:
            self._adjust(account, key)
        return account

    def _hear(self) -> None:
        """Count what keys have used elsewhere; an account that is not in use here finds it in the book when it is."""
        if self._book is None:
            return
        for key, tokens in self._book.elsewhere():
            account = self._accounts.get(key)
            if account is None:
                continue
            for bucket in account.buckets.values():
                if bucket.lasting:  # it may be what was used in days, if nobody asked this process for anything
                    bucket.recall(tokens, self._clock())

    def _adjust(self, account: Account, key: Key) -> None:
        """Buckets as the key's limits are now. A new one for tokens begins where the book has it, so a restart forgets nothing."""
        limits, old = key.limits, account.buckets
        account.limits, account.buckets = limits, {}
        for unit, window, limit in _windows(limits):
            bucket = old.get((unit, window))
            if limit and bucket is None:
                bucket = Bucket(unit, window, limit)
                if self._book and bucket.lasting:
                    self._recall(bucket, key, self._book)
            if limit and bucket is not None:
                bucket.use(0, self._clock())  # what has drained so far did so at the old rate
                bucket.limit = limit
                account.buckets[unit, window] = bucket

    def _recall(self, bucket: Bucket, key: Key, book: Book) -> None:
        """Let all that was ever used go through the bucket: how much of a day is back depends on when it was used, and what before it."""
        clock, now = self._clock(), self._now()
        for time, tokens in book.spent(key.id):
            bucket.recall(tokens, clock - max(0.0, now - time))


class Lease:
    """A completion under way. A context manager: its end lets go of what is held and frees its place."""

    def __init__(self, account: Account, clock: Callable[[], float], places: int) -> None:
        self._account, self._clock, self.places = account, clock, places
        self._held: list[tuple[Bucket, int]] = []
        self._requests = 0  # held
        self._settled = 0  # tokens

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(error, _TURNED_AWAY):
            self.begin()  # also one that is refused for what it asks: a client that sends nothing else costs work too
        self._let_go(*Unit)
        self.leave()

    def leave(self) -> None:
        """Free its place; idempotent."""
        self._account.running -= self.places
        self.places = 0

    def check(self, unit: Unit, amount: int) -> None:
        """
        Raises:
            OverLimit: less than ``amount`` is left of a limit.
        """
        now = self._clock()
        for bucket in self._account.of(unit):
            wait = bucket.wait(amount, now)
            if wait != 0.0:
                raise OverLimit(bucket.meter(now), amount, wait)

    def count(self, requests: int) -> None:
        """Hold back requests.

        Raises:
            OverLimit: so many are not left; none is held.
        """
        self._hold(Unit.REQUESTS, requests)
        self._requests += requests

    def reserve(self, tokens: int) -> None:
        """Hold back as many tokens as it may come to.

        Raises:
            OverLimit: so many are not left; none is held.
        """
        self._hold(Unit.TOKENS, tokens)

    def begin(self) -> None:
        """Use the requests that were held."""
        self._use(Unit.REQUESTS, self._requests)
        self._requests = 0

    def settle(self, tokens: int) -> None:
        """Count the tokens that were computed, all in all, instead of those that were held."""
        self._use(Unit.TOKENS, tokens - self._settled)
        self._settled = tokens

    def _hold(self, unit: Unit, amount: int) -> None:
        self.check(unit, amount)
        for bucket in self._account.of(unit):
            bucket.held += amount
            self._held.append((bucket, amount))

    def _use(self, unit: Unit, amount: int) -> None:
        self._let_go(unit)
        for bucket in self._account.of(unit):
            bucket.use(amount, self._clock())

    def _let_go(self, *units: Unit) -> None:
        for bucket, amount in self._held:
            bucket.held -= amount if bucket.unit in units else 0
        self._held = [(bucket, amount) for bucket, amount in self._held if bucket.unit not in units]


def _windows(limits: Limits) -> Iterable[tuple[Unit, float, int]]:
    """Every limit over time: what it counts, its window, and how much."""
    return (
        (Unit.REQUESTS, MINUTE, limits.requests_per_minute),
        (Unit.REQUESTS, DAY, limits.requests_per_day),
        (Unit.TOKENS, MINUTE, limits.tokens_per_minute),
        (Unit.TOKENS, DAY, limits.tokens_per_day),
        (Unit.TOKENS, 0.0, limits.budget),
    )
