"""Which dialect answers: an explicit header, then the path's prefix, then the server's setting for the bare paths."""

from __future__ import annotations

from dataclasses import dataclass

from quintet.dialects.catalog import DEFAULT, PROVIDERS, Provider
from quintet.errors import BadRequest, shorten
from quintet.server.http import Request

HEADER = "x-completions-dialect"
"""Names the dialect in a request, and in every answer the one that was used."""

AUTO = "auto"
"""Setting: on the bare paths the SDK's ``User-Agent`` decides. It says nothing when one provider's SDK is pointed at another."""

BARE = ("", "/v1", "/v1/v1")
"""Paths without a provider's prefix; the last is what an SDK that adds ``/v1`` makes of a base URL that has it."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a path means.

    Args:
        provider: in whose words to answer.
        bare: the path has no provider's prefix.
        resource: the rest of the path, e.g. ``/completions``.
    """

    provider: Provider
    bare: bool
    resource: str


class Mounts:
    """Finds the target of a request.

    Args:
        default: a provider's name, or ``AUTO``.
    """

    def __init__(self, default: str) -> None:
        self._auto = default == AUTO
        self._default = PROVIDERS[DEFAULT if self._auto else default]
        self._bases: dict[str, Provider | None] = dict.fromkeys(BARE)
        for provider in PROVIDERS.values():
            self._bases |= dict.fromkeys(provider.bases, provider)
        self._deepest = max(base.count("/") for base in self._bases)

    def find(self, request: Request) -> Target:
        """By path and ``User-Agent`` alone."""
        base = self._base(request.path)
        provider = self._bases[base]
        found = provider or (self._by_agent(request.headers.get("user-agent", "")) if self._auto else self._default)
        return Target(found, provider is None, request.path[len(base) :])

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

    def _by_agent(self, agent: str) -> Provider:
        return next((one for one in PROVIDERS.values() if agent.startswith(one.agents)), self._default)


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
