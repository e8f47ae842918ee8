"""What is at a path, and in whose words: one table, looked up once per request.

The dialect is that of an explicit header, then of the path's prefix, then of the server's setting for the bare paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quintet.dialects.catalog import DEFAULT, PROVIDERS, Provider
from quintet.errors import BadRequest, shorten
from quintet.server.auth import given_key
from quintet.server.call import Route
from quintet.server.http import Request

HEADER = "x-completions-dialect"
"""Names the dialect in a request, and in every answer the one that was used."""

AUTO = "auto"
"""Setting: on the bare paths the SDK's ``User-Agent`` decides. It says little where it is OpenAI's, which is pointed at other providers
too: a key that is a provider's by its form says more than that, and decides on paths that several providers have too."""

BARE = ("", "/v1", "/v1/v1")
"""Paths without a provider's prefix; the last is what an SDK that adds ``/v1`` makes of a base URL that has it."""


@dataclass(frozen=True, slots=True)
class Match:
    """What a path means.

    Args:
        provider: in whose words to answer.
        route: ``None`` = there is nothing.
        tail: of the path, where the route takes all that is beneath it; what a ``*`` of the route's path stands for.
    """

    provider: Provider
    route: Route | None
    tail: str


class Router:
    """The routes of a server.

    Args:
        plain: path -> what is there, and nowhere else.
        resources: what is beneath every base, by the path from there on. A path that ends with a slash takes all that is beneath it,
            and one such as ``/files/*/content`` what is beneath that and ends so.
        default: of the bare paths: a provider's name, or ``AUTO``.
    """

    def __init__(self, plain: Mapping[str, Route], resources: Mapping[str, Route], default: str) -> None:
        self._auto = default == AUTO
        self._default = PROVIDERS[DEFAULT if self._auto else default]
        self._bases: dict[str, Provider | None] = dict.fromkeys(BARE)
        for provider in PROVIDERS.values():
            self._bases |= dict.fromkeys(provider.bases, provider)
        self._bases |= dict.fromkeys(self._default.claims, self._default)
        self._claimed = frozenset(base for provider in PROVIDERS.values() for base in provider.claims)
        self._deepest = max(base.count("/") for base in self._bases)
        self._table = {(base, path): route for base in self._bases for path, route in resources.items()}
        for path, route in plain.items():
            base = self._base(path)
            self._table[base, path[len(base) :]] = route

    def match(self, request: Request) -> Match:
        """By path and ``User-Agent`` alone; the path's spelling is exact, with no slash more or less."""
        path = request.path
        base = self._base(path)
        resource, tail = path[len(base) :], ""
        head = resource[: resource.find("/", 1) + 1]
        if resource == head:  # nothing is beneath a slash that ends the path: no name, which would mean the first model
            return Match(self._provider(base, request), None, tail)
        route = self._table.get((base, resource))
        if route is None:
            route, tail = self._table.get((base, head)), resource[len(head) :]
            name, _, last = tail.rpartition("/")
            if name and (inner := self._table.get((base, f"{head}*/{last}"))):
                route, tail = inner, name
        return Match(self._provider(base, request), route, tail)

    def _base(self, path: str) -> str:
        """The longest base that the path begins with, whole segments only."""
        best, at = "", 0
        for _ in range(self._deepest):
            at = path.find("/", at + 1)
            head = path if at < 0 else path[:at]
            if head in self._bases:
                best = head
            if at < 0:
                break
        return best

    def _provider(self, base: str, request: Request) -> Provider:
        by_path = self._bases[base]
        if by_path is None and not self._auto:
            return self._default
        agent = request.headers.get("user-agent", "")
        by_agent = next((provider for provider in PROVIDERS.values() if agent.startswith(provider.agents)), None)
        if by_path is None and by_agent is not None and by_agent.name != DEFAULT:
            return by_agent  # its SDK reads nobody else's answers, whatever its key looks like; OpenAI's is Novita's too
        if self._auto and (by_path is None or base in self._claimed):
            key = (given_key(request.headers.raw) or b"").decode("latin-1")
            by_key = next((provider for provider in PROVIDERS.values() if key.startswith(provider.keys)), None)
            if by_key is not None:
                return by_key
        return by_path or by_agent or self._default


def named(request: Request) -> Provider | None:
    """The provider that the request's header names, if it has the header.

    Raises:
        BadRequest: not exactly one known name.
    """
    given = request.headers.getlist(HEADER)
    if not given:
        return None
    provider = PROVIDERS.get(given[0].strip().lower()) if len(given) == 1 else None
    if provider is None:
        raise BadRequest("X-Completions-Dialect", f"must be one of {', '.join(PROVIDERS)}", shorten(", ".join(given)))
    return provider
