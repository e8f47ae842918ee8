"""API keys: who may ask."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence

from quintet.errors import NotAuthorized

_SCHEME = b"Bearer "
_REFUSAL = "Missing or wrong API key; send it as 'Authorization: Bearer KEY'."


class Keys:
    """The accepted keys, as keyed digests only: memory holds no key, and equal-length digests compare in constant time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._secret = secrets.token_bytes(32)
        self._digests = [self._digest(key.encode()) for key in keys]

    def require(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Check raw ASGI headers; without keys everybody is welcome.

        Raises:
            NotAuthorized: anything but exactly one ``Authorization: Bearer KEY`` with a known key; always the same words.
        """
        if not self._digests:
            return
        given = [value for name, value in headers if name == b"authorization"]
        if len(given) != 1 or not given[0].startswith(_SCHEME) or not self._known(given[0][len(_SCHEME) :]):
            raise NotAuthorized(_REFUSAL)

    def _known(self, key: bytes) -> bool:
        digest = self._digest(key)
        # A sum and not any(): all are compared, so that the time does not tell which key matched.
        return sum(hmac.compare_digest(digest, one) for one in self._digests) > 0

    def _digest(self, key: bytes) -> bytes:
        return hmac.digest(self._secret, key, hashlib.sha256)
