"""When a dead engine is started again, and which requests it is not given any more. Plain code over values."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

AT_ONCE = 2
"""So many failed starts in a row are followed by another without a pause."""

OFTEN = 4
"""So many deaths within ``WINDOW_S``, whatever there was between them, and there is a pause too: nothing has changed since the last."""

WINDOW_S = 1800.0

GIVEN_UP = 4
"""After so many failed starts in a row the engine counts as dead; it is tried on, slowly."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0

BLOCKED_AT = 2.0
"""A request with so much blame is taken for the cause."""

BLAME, LESS_BLAME = 1.0, 0.5
"""For being computed when the engine died: before its first token, and later, when it had been computed for a while without harm."""

BLOCKED_S = 600.0
"""For so long, and then it gets another chance: it may have been the victim of something else."""

MOST_SUSPECTS = 4096


def pause(failures: int, deaths: int = 0) -> float:
    """Seconds before the next start, after ``failures`` starts in a row that did not reach readiness, and ``deaths`` in ``WINDOW_S``."""
    doublings = max(failures - AT_ONCE, deaths - OFTEN)
    return 0.0 if doublings < 0 else min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(doublings, 16))


class Deaths:
    """Those of the last ``WINDOW_S`` seconds."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def add(self, now: float) -> int:
        """One more, at ``now``; how many there are."""
        self._times.append(now)
        while now - self._times[0] >= WINDOW_S:
            self._times.popleft()
        return len(self._times)


@dataclass(slots=True)
class _Suspect:
    """A request that was being computed when the engine died.

    Args:
        at: seconds, of the last time.
        blame: by tenant.
        total: of all tenants together.
        guilty: whoever sends it, it is the cause: it was the only one that was being computed.
    """

    at: float
    blame: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    guilty: bool = False


class Suspects:
    """Requests, by a digest of what they ask for, that were being computed when the engine died.

    One with ``BLOCKED_AT`` of blame is blocked for the tenant that sent it; for all tenants, once it has that much and the engine died
    while it computed nothing else. So nobody can have another tenant's harmless request blocked by sending the same one beside a deadly
    one. One that ends well is cleared: the deaths were not its doing.
    """

    def __init__(self) -> None:
        self._suspects: dict[bytes, _Suspect] = {}  # those of the last death at the end

    def __len__(self) -> int:
        return len(self._suspects)

    def blame(self, shares: Mapping[tuple[bytes, str], float], now: float) -> None:
        """The engine died at ``now`` (seconds) over these.

        Args:
            shares: by digest and tenant.
        """
        worst: dict[bytes, float] = {}  # one death counts once, however many tenants had sent the same
        for (digest, tenant), share in shares.items():
            suspect = self._of(digest, now) or _Suspect(now)
            self._suspects.pop(digest, None)
            self._suspects[digest] = suspect
            suspect.at = now
            suspect.blame[tenant] = suspect.blame.get(tenant, 0.0) + share
            worst[digest] = max(share, worst.get(digest, 0.0))
        for digest, share in worst.items():
            suspect = self._suspects[digest]
            suspect.total += share
            suspect.guilty |= len(worst) == 1 and suspect.total >= BLOCKED_AT
        while len(self._suspects) > MOST_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]

    def clear(self, digest: bytes) -> None:
        """It ended well."""
        self._suspects.pop(digest, None)

    def suspected(self, digest: bytes, now: float) -> bool:
        """It must not run beside another suspect, or nobody could tell them apart."""
        return self._of(digest, now) is not None

    def blocked(self, digest: bytes, tenant: str, now: float) -> bool:
        """It must not run for this tenant."""
        suspect = self._of(digest, now)
        return suspect is not None and (suspect.guilty or suspect.blame.get(tenant, 0.0) >= BLOCKED_AT)

    def _of(self, digest: bytes, now: float) -> _Suspect | None:
        suspect = self._suspects.get(digest)
        return suspect if suspect is not None and now - suspect.at < BLOCKED_S else None


@dataclass(frozen=True, slots=True)
class Records:
    """What is suspected of deaths: of one engine, or of all replicas of a model, or what has killed one twice would go on to the next."""

    requests: Suspects = field(default_factory=Suspects)
    images: Suspects = field(default_factory=Suspects)
