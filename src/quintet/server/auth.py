"""API keys: who may ask, from where how often in vain, and what separates one key's requests from another's."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quintet.errors import NotAuthorized, QuintetError, TooManyRequests

_log = logging.getLogger(__name__)

_SCHEME = b"bearer "
_REFUSAL = "Missing or wrong API key; send it as 'Authorization: Bearer KEY'."
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")

RELOAD_S = 1.0
"""A key that is taken out of the file opens nothing after so long."""

MOST_FAILURES = 20
FAILURE_S = 3.0
"""An address may try ``MOST_FAILURES`` wrong keys at once, and another one every ``FAILURE_S`` seconds."""

MOST_ADDRESSES = 4096


class KeyFileError(QuintetError):
    """The key file is missing, unsafe or malformed."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Args:
        id: the first 8 hex digits of the key's SHA-256, for logs; empty without keys.
        salt: known to this process only, different for each key; empty without keys.
    """

    id: str = ""
    salt: str = ""


ANYBODY = Caller()


class Keys:
    """The accepted keys, as keyed digests only: memory holds no key, and equal-length digests compare in constant time.

    Args:
        keys: in plain text.
        file: see ``read_key_file``; looked at again when it has changed.
        clock: seconds, monotonic.
    """

    def __init__(self, keys: Iterable[str], file: Path | None, clock: Callable[[], float]) -> None:
        self._secret = secrets.token_bytes(32)
        self._given = [self._entry(hashlib.sha256(key.encode()).digest()) for key in keys]
        self._file, self._clock = file, clock
        self._failures = Failures(clock)
        self._read: list[tuple[bytes, Caller]] = []
        self._stamp: tuple[int, ...] = ()
        self._looked = clock()
        self._open = not self._given and file is None
        if file is not None:
            self._load(file)

    def require(self, headers: Sequence[tuple[bytes, bytes]], address: str) -> Caller:
        """Check raw ASGI headers; without keys everybody is welcome.

        Raises:
            NotAuthorized: anything but exactly one ``Authorization: Bearer KEY`` (``bearer`` too) with a known key; always the same words.
            TooManyRequests: too many wrong keys from this address.
        """
        if self._open:
            return ANYBODY
        self._refresh()
        given = [value for name, value in headers if name == b"authorization"]
        if len(given) != 1 or given[0][: len(_SCHEME)].lower() != _SCHEME:
            raise NotAuthorized(_REFUSAL)
        caller = self._known(given[0][len(_SCHEME) :])
        # Asked even for a right key: as long as an address is locked out, a guess must not show that it was right.
        self._failures.require(address, caller)
        if caller is None:
            raise NotAuthorized(_REFUSAL)
        return caller

    def _known(self, key: bytes) -> Caller | None:
        digest = self._mac(hashlib.sha256(key).digest())
        # All are compared, so that the time does not tell which one matched.
        found = [caller for known, caller in (*self._given, *self._read) if hmac.compare_digest(digest, known)]
        return found[0] if found else None

    def _entry(self, digest: bytes) -> tuple[bytes, Caller]:
        salt = hmac.digest(self._secret, b"salt" + digest, hashlib.sha256).hex()
        return self._mac(digest), Caller(digest.hex()[:8], salt)

    def _mac(self, digest: bytes) -> bytes:
        return hmac.digest(self._secret, digest, hashlib.sha256)

    def _refresh(self) -> None:
        now = self._clock()
        if self._file is None or now - self._looked < RELOAD_S:
            return
        self._looked = now
        try:
            if _stamp(self._file) != self._stamp:
                self._load(self._file)
        except KeyFileError as error:
            # Nobody is let in by a file that may be anybody's; the keys given in other ways go on.
            if self._read:
                _log.error("API key file: %s; its keys are refused until it is mended", error)
            self._read, self._stamp = [], ()

    def _load(self, file: Path) -> None:
        stamp = _stamp(file)
        self._read = [self._entry(digest) for digest in read_key_file(file)]
        self._stamp = stamp


@dataclass(slots=True)
class _Record:
    """An address: what it may still try, since when, and the keys it has used rightly."""

    left: float
    since: float
    known: set[str] = field(default_factory=set)


class Failures:
    """Wrong keys per address. A key that an address has used rightly before works on whatever the others there try."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def require(self, address: str, caller: Caller | None) -> None:
        """Count an attempt; ``caller`` is ``None`` if the key was wrong.

        Raises:
            TooManyRequests: wrong, or right for the first time, after too many wrong ones.
        """
        record = self._record(address)
        if caller is not None and caller.id in record.known:
            return
        if record.left < 1:
            raise TooManyRequests("Too many wrong API keys from this address.", FAILURE_S)
        if caller is None:
            record.left -= 1
        else:
            record.known.add(caller.id)

    def _record(self, address: str) -> _Record:
        now = self._clock()
        record = self._records.pop(address, None) or _Record(MOST_FAILURES, now)
        record.left = min(MOST_FAILURES, record.left + (now - record.since) / FAILURE_S)
        record.since = now
        self._records[address] = record
        if len(self._records) > MOST_ADDRESSES:
            self._records.popitem(last=False)
        return record


def read_key_file(file: Path) -> list[bytes]:
    """The SHA-256 digests of the keys in a file: a key or ``sha256:HEX`` per line; empty lines and lines with ``#`` first are skipped.

    Raises:
        KeyFileError: not a readable file, readable or writable by everybody, no key in it, or a line that is no key. The text never
            holds a line's content.
    """
    try:
        info = file.stat()
        text = file.read_text(encoding="ascii") if stat.S_ISREG(info.st_mode) else ""
    except UnicodeDecodeError:
        raise KeyFileError(f"{file}: an API key must be ASCII") from None
    except OSError as error:
        raise KeyFileError(f"{file}: {error.strerror}") from None
    if not stat.S_ISREG(info.st_mode):
        raise KeyFileError(f"{file} is not a file")
    if os.name == "posix" and info.st_mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        raise KeyFileError(f"{file} may be read by everybody or written by others; chmod 600 it")
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    digests = [_digest(file, number, line) for number, line in lines if line and not line.startswith("#")]
    if not digests:
        raise KeyFileError(f"{file} holds no API key")
    return digests


def _digest(file: Path, number: int, line: str) -> bytes:
    if found := _HASHED.fullmatch(line):
        return bytes.fromhex(found[1])
    if line.startswith("sha256:") or " " in line or not line.isprintable():
        raise KeyFileError(f"{file}, line {number}: must be a key without spaces, or sha256: and 64 hex digits")
    return hashlib.sha256(line.encode()).digest()


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        info = file.stat()
    except OSError as error:
        raise KeyFileError(f"{file}: {error.strerror}") from None
    return info.st_mtime_ns, info.st_size, info.st_ino, info.st_mode
