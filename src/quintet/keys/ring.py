"""Which keys are in force now, wherever they are kept, and the look-up of one.

Memory holds no key: only digests keyed with a secret of this process. So whoever can measure how long a look-up takes learns nothing about
a key's digest, let alone the key: how the keyed digest of a guess compares with those that are stored is nothing that the guess decides.
What is found is compared once more in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from quintet.keys.file import BusyError, KeyFileError
from quintet.keys.key import Key

_log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds after which a change of the keys counts at the latest."""


class KeySource(Protocol):
    """Keys that may change while they are in use."""

    def stamp(self) -> tuple[int, ...]:
        """Differs when they have changed.

        Raises:
            KeyFileError: nothing can be told of them.
        """
        ...

    def read(self) -> list[Key]:
        """All of them.

        Raises:
            BusyError: they are being changed, or cannot be had for no fault of theirs.
            KeyFileError: they cannot be had, or must not be believed.
        """
        ...


class KeyRing:
    """All keys.

    Args:
        given: those that stay as they are.
        sources: of those that may change, looked at again every ``LOOK_S`` seconds.
        clock: seconds, monotonic.
        now: Unix time in seconds, for keys that expire.
        salts: secret that salts are made of; empty = one of this process.

    Raises:
        KeyFileError: a source cannot be read.
    """

    def __init__(
        self,
        given: Iterable[Key],
        sources: Sequence[KeySource],
        clock: Callable[[], float],
        now: Callable[[], float],
        salts: bytes = b"",
    ) -> None:
        self._secret = secrets.token_bytes(32)
        self._salts = salts or self._secret
        self._given, self._clock, self._now = tuple(given), clock, now
        self._sources = [_Watched(source) for source in sources]
        self._looked = clock()
        self._entries = self._index()

    def find(self, secret: bytes) -> Key | None:
        """The key in force that ``secret`` is."""
        return self.of_digest(hashlib.sha256(secret).digest())

    def of_digest(self, digest: bytes) -> Key | None:
        """The key in force whose SHA-256 this is."""
        self._refresh()
        mac = self._mac(digest)
        stored, key = self._entries.get(mac, (b"", None))
        return key if key is not None and hmac.compare_digest(mac, stored) and key.live(self._now()) else None

    @property
    def live(self) -> int:
        """How many are in force now."""
        now = self._now()
        return sum(key.live(now) for _, key in self._entries.values())

    @property
    def lasting(self) -> int:
        """Of how many of these a limit is to go on over a restart."""
        now = self._now()
        return sum(key.live(now) and key.limits.lasting for _, key in self._entries.values())

    def salt(self, key: Key) -> str:
        """A word known to those only who have the secret, different for each key."""
        return hmac.digest(self._salts, b"salt" + key.digest, hashlib.sha256).hex()

    def _refresh(self) -> None:
        now = self._clock()
        if not self._sources or now - self._looked < LOOK_S:
            return
        self._looked = now
        changed = [source.refresh() for source in self._sources]
        if any(changed):
            self._entries = self._index()

    def _index(self) -> dict[bytes, tuple[bytes, Key]]:
        keys = [*(key for source in self._sources for key in source.keys), *self._given]  # of equal ones the last counts
        macs = [self._mac(key.digest) for key in keys]
        return {mac: (mac, key) for mac, key in zip(macs, keys, strict=True)}

    def _mac(self, digest: bytes) -> bytes:
        return hmac.digest(self._secret, digest, hashlib.sha256)


class _Watched:
    """A source and what it held when it last changed."""

    def __init__(self, source: KeySource) -> None:
        self._source = source
        self._stamp = source.stamp()
        self.keys = source.read()

    def refresh(self) -> bool:
        """Whether the keys are others now."""
        try:
            stamp = self._source.stamp()
            if stamp == self._stamp:
                return False
            self.keys, self._stamp = self._source.read(), stamp
        except BusyError:
            return False  # the next look sees it
        except KeyFileError as error:
            # Nobody is let in by a file that may be anybody's; keys from elsewhere go on.
            if self._stamp:
                _log.error("API keys: %s; its keys are refused until it is mended", error)
            self.keys, self._stamp = [], ()
        return True
