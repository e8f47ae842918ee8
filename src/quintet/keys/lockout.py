"""Wrong keys per address: after too many of them an address waits, and nobody beside it suffers.

An address may be many people's: all behind one proxy, or one of a building. So what a guesser does there must not shut the others out:

- A generated key (``Key.generated``) is always let in. It cannot be guessed, so there is nothing to protect it from.
- A key that was chosen by hand may be guessed, and a guess must not show that it was right while its address is locked out. It is let in
  where it was used rightly before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from quintet.errors import TooManyRequests
from quintet.keys.key import Key
from quintet.keys.site import site

MOST_FAILURES = 20
FAILURE_S = 3.0
"""An address may try ``MOST_FAILURES`` wrong keys at once, and another one every ``FAILURE_S`` seconds."""

MOST_ADDRESSES = 4096


@dataclass(slots=True)
class _Record:
    """An address.

    Args:
        tries: wrong keys that it may still try.
        since: when it had so many.
        known: ids of the keys that it has used rightly.
    """

    tries: float
    since: float
    known: set[str] = field(default_factory=set)


class Lockout:
    """The addresses that tried wrong keys lately.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def require(self, address: str, key: Key | None) -> None:
        """Count an attempt; ``key`` is ``None`` if it was wrong.

        Raises:
            TooManyRequests: wrong, or chosen by hand and right here for the first time, after too many wrong ones.
        """
        if key is not None and key.generated:
            return
        record = self._record(site(address))
        if key is not None and key.id in record.known:
            return
        if record.tries < 1:
            raise TooManyRequests("Too many wrong API keys from this address.", FAILURE_S)
        if key is None:
            record.tries -= 1
        else:
            record.known.add(key.id)

    def _record(self, address: str) -> _Record:
        now = self._clock()
        record = self._records.pop(address, None) or _Record(MOST_FAILURES, now)
        record.tries = min(MOST_FAILURES, record.tries + (now - record.since) / FAILURE_S)
        record.since = now
        self._records[address] = record
        if len(self._records) > MOST_ADDRESSES:
            self._records.popitem(last=False)
        return record
