"""What web pages of other sites may do here (https://fetch.spec.whatwg.org/#http-cors-protocol): nothing, unless their origin is allowed.

``Access-Control-Allow-Credentials`` is never sent. A key travels in ``Authorization``, which a page sets itself, and nothing that a
browser adds on its own, such as a cookie, means anything here. So ``*`` never comes together with credentials.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from quintet.errors import Forbidden
from quintet.server.http import Request

ANY = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?")
_MAX_AGE_S = 600
_PREFLIGHT = (
    ("access-control-allow-methods", "GET, HEAD, POST, DELETE"),
    ("access-control-allow-headers", "*, authorization"),  # the wildcard does not cover that one
    ("access-control-max-age", str(_MAX_AGE_S)),
)

Headers = tuple[tuple[str, str], ...]


class Cors:
    """
    Args:
        origins: as a browser spells them, such as ``https://app.example.org``; ``*`` = every one.
    """

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)

    def headers(self, request: Request) -> Headers:
        """Of every answer, errors too, so that the page can tell its user what was wrong."""
        if ANY in self._origins:
            return (("access-control-allow-origin", ANY), ("access-control-expose-headers", ANY))
        if not self._origins:
            return ()
        origin = request.headers.get("origin")
        allowed = (("access-control-allow-origin", origin), ("access-control-expose-headers", ANY)) if origin in self._origins else ()
        return (("vary", "origin"), *allowed)

    def preflight(self, request: Request) -> Headers | None:
        """What a browser is told that asks, without a key, whether its page may send a request; ``None``: that is not what this is."""
        asks = request.method == "OPTIONS" and "access-control-request-method" in request.headers
        if asks and (ANY in self._origins or request.headers.get("origin") in self._origins):
            return _PREFLIGHT
        return None

    def require_allowed(self, request: Request) -> None:
        """A form, a POST without a body and a GET are what any web page can send to another site's server without asking first.

        Raises:
            Forbidden: this one does, and its site is not allowed to.
        """
        site, origin = request.headers.get("sec-fetch-site", ""), request.headers.get("origin", "")
        if site in ("same-origin", "none") or (not site and not origin):
            return
        if ANY not in self._origins and origin not in self._origins:
            raise Forbidden("A page of this origin may not send this here (--cors-origin).")


def is_origin(text: str) -> bool:
    """Whether ``text`` is ``*`` or an origin: scheme, host and perhaps a port. Not ``null``, which any page can make itself."""
    return text == ANY or _ORIGIN.fullmatch(text) is not None
