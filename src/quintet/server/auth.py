"""Who asks: the key in a request's head, and what it may do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from quintet.config import ServerConfig
from quintet.errors import Forbidden, NotAuthorized, NotFound
from quintet.keys.key import NOBODY, Key, Scope
from quintet.keys.lockout import Lockout
from quintet.keys.ring import KeyRing, KeySource
from quintet.keys.sources import key_sources

_SCHEME = b"bearer "
_REFUSAL = "Missing or wrong API key; send it as 'Authorization: Bearer KEY'."
_NO_ADMIN = (
    "Models are loaded and unloaded over HTTP only where the server has an admin key; start it with --admin-key, or with --keys and a "
    "key of scope admin."
)

RawHeaders = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Args:
        id: the first 8 hex digits of the key's SHA-256, for logs; empty without keys.
        salt: known to nobody outside, different for each key; empty without keys.
        key: what may be done with it.
        background: nobody waits for what is asked: it is computed when nothing else is to be done.
    """

    id: str = ""
    salt: str = ""
    key: Key = NOBODY
    background: bool = False

    @property
    def owner(self) -> str:
        """Names the owner of what is kept for this caller: the key's whole digest, in hex; empty without keys."""
        return self.key.digest.hex()

    @property
    def tenant(self) -> str:
        """Who takes turns with others: what a key asks in the background does so apart from what it waits for."""
        return f"{self.id}/background" if self.background else self.id

    @property
    def weight(self) -> int:
        """The tenant's share; see ``Prepared``."""
        return 0 if self.background else self.key.priority


ANYBODY = Caller()


class Auth:
    """Tells callers by their keys.

    Args:
        keys: accepted ones, in plain text.
        admin: the admin's, in plain text; empty = none. Alone it closes nothing but what is the admin's.
        sources: of more keys.
        clock: seconds, monotonic.
        now: Unix time in seconds.
        salts: see ``KeyRing``.

    Raises:
        KeyFileError: a source cannot be read.
    """

    def __init__(
        self,
        keys: Iterable[str],
        admin: str,
        sources: Sequence[KeySource],
        clock: Callable[[], float],
        now: Callable[[], float],
        salts: bytes = b"",
    ) -> None:
        users = [_chosen(key) for key in keys]
        admins = [_chosen(admin, Scope.ADMIN)] if admin else []
        self._open = not users and not sources
        self._administered = bool(admin) or bool(sources)
        self._ring = KeyRing((*users, *admins), sources, clock, now, salts)
        self._lockout = Lockout(clock)
        self._admin_only = len({key.digest for key in admins} - {key.digest for key in users})

    @classmethod
    def of(cls, config: ServerConfig, clock: Callable[[], float], now: Callable[[], float]) -> Auth:
        """As a server's settings have it.

        Raises:
            KeyFileError: a file of keys is missing, unsafe or malformed.
        """
        return cls(config.api_keys, config.admin_key, key_sources(config), clock, now, config.salt_secret)

    @property
    def keys(self) -> int | None:
        """Those in force now, without the admin's; ``None`` = none is needed."""
        return None if self._open else self._ring.live - self._admin_only

    @property
    def lasting(self) -> int:
        """How many of them have limits that go on over a restart, if there is a ledger."""
        return self._ring.lasting

    def require(self, headers: RawHeaders, address: str) -> Caller:
        """Check raw ASGI headers; without keys everybody is welcome.

        Raises:
            NotAuthorized: anything but exactly one ``Authorization: Bearer KEY`` (in any case), or without that header exactly one
                ``X-Api-Key: KEY``, with a known key; always the same words.
            TooManyRequests: too many wrong keys from this address.
        """
        return ANYBODY if self._open else self._identify(headers, address)

    def of_owner(self, owner: str) -> Caller:
        """The caller for whom something is kept, by ``Caller.owner``.

        Raises:
            NotAuthorized: the key is not in force.
        """
        if self._open and not owner:
            return ANYBODY
        key = self._ring.of_digest(bytes.fromhex(owner))
        if key is None:
            raise NotAuthorized(_REFUSAL)
        return Caller(key.id, self._ring.salt(key), key)

    def require_admin(self, caller: Caller, headers: RawHeaders, address: str) -> None:
        """Check who loads and unloads models, where no key may be needed for anything else.

        Raises:
            NotFound: nobody may.
            NotAuthorized, TooManyRequests: see ``require``.
            Forbidden: this key may not.
        """
        if not self._administered:
            raise NotFound(_NO_ADMIN)
        require_scope(self._identify(headers, address) if self._open else caller, Scope.ADMIN)

    def _identify(self, headers: RawHeaders, address: str) -> Caller:
        given = given_key(headers)
        if given is None:
            raise NotAuthorized(_REFUSAL)
        key = self._ring.find(given)
        # Asked even for a right key: as long as an address is locked out, a guess must not show that it was right.
        self._lockout.require(address, key)
        if key is None:
            raise NotAuthorized(_REFUSAL)
        return Caller(key.id, self._ring.salt(key), key)


def _bearer(authorization: bytes) -> bytes | None:
    """The key in an ``Authorization`` header; ``None`` = there is none. RFC 9110, 11.1: a scheme's name may be in any case."""
    scheme, key = authorization[: len(_SCHEME)], authorization[len(_SCHEME) :]
    return key if scheme.lower() == _SCHEME else None


def given_key(headers: RawHeaders) -> bytes | None:
    """The key that a request's head holds; ``None`` = not exactly one."""
    bearers = [value for name, value in headers if name == b"authorization"]
    if bearers:
        return _bearer(bearers[0]) if len(bearers) == 1 else None
    bare = [value for name, value in headers if name == b"x-api-key"]
    return bare[0] if len(bare) == 1 else None


def require_scope(caller: Caller, scope: Scope) -> None:
    """
    Raises:
        Forbidden: the caller's key does not have it.
    """
    if not caller.key.may(scope):
        raise Forbidden(f"This key may not do that; it needs the scope {scope.value}.")


def _chosen(key: str, *scopes: Scope) -> Key:
    return Key(hashlib.sha256(key.encode()).digest(), scopes=frozenset(scopes))
