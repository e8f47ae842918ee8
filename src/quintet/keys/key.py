"""A key as the server knows it: never the key itself, only its digest and what it may do. Plain code over values."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from quintet.quota import NO_LIMITS, Limits

MOST_PRIORITY = 10

LAST_TIME = 253_402_300_799.0
"""The latest Unix time that a key may have: the end of the year 9999, beyond which dates cannot be written."""


class Scope(enum.Enum):
    """What a key may do beside completions."""

    METRICS = "metrics"  # see everybody's counts and the state of all models
    ADMIN = "admin"  # load and unload models, and all of the above


@dataclass(frozen=True, slots=True)
class Key:
    """
    Args:
        digest: SHA-256 of the key.
        created, expires, revoked: Unix times in seconds; ``None`` = never.
        models: the names that it may use, ``*`` in one = any text; empty = all.
        priority: its share against others' where they wait for each other, 1 to ``MOST_PRIORITY``.
        generated: it was drawn here from 256 random bits, which nobody can guess.
    """

    digest: bytes
    name: str = ""
    created: float = 0.0
    expires: float | None = None
    revoked: float | None = None
    models: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS
    priority: int = 1
    scopes: frozenset[Scope] = frozenset()
    generated: bool = False

    @property
    def id(self) -> str:
        """The first 8 hex digits of the digest; empty for nobody's."""
        return self.digest.hex()[:8]

    def live(self, now: float) -> bool:
        """It opens anything at ``now`` (Unix time)."""
        return self.revoked is None and (self.expires is None or now < self.expires)

    def may(self, scope: Scope) -> bool:
        """It has a scope, or the one that holds all others."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


NOBODY = Key(b"", scopes=frozenset({Scope.METRICS}))
"""Whoever asks where no key is needed."""
