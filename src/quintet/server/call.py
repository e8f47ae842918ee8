"""What is at a path, and what it is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from quintet.dialects.catalog import Provider
from quintet.errors import MethodNotAllowed
from quintet.server.auth import ANYBODY, Caller
from quintet.server.http import Request
from quintet.server.telemetry import Observer

Fact = str | float | None


@dataclass(frozen=True, slots=True)
class Call:
    """A request that may be answered.

    Args:
        provider: in whose words.
        route: what the path means; ``None`` = there is nothing.
        tail: of the path, where the route takes all that is beneath it.
        arrived: seconds on the telemetry's clock.
        caller: who asks.
        facts: what the endpoint adds to the access log.
        observers: those of the completions that were begun for it.
    """

    http: Request
    provider: Provider
    route: Route | None
    tail: str
    arrived: float
    caller: Caller = ANYBODY
    facts: dict[str, Fact] = field(default_factory=dict)
    observers: list[Observer] = field(default_factory=list)


Endpoint = Callable[[Call], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """What is at a path.

    Args:
        name: for metrics and logs.
        methods: ``GET`` stands for ``HEAD`` too.
        dialects: names of those in which it exists; ``None`` = all.
    """

    name: str
    methods: Mapping[str, Endpoint]
    dialects: frozenset[str] | None = None

    def endpoint(self, method: str) -> Endpoint:
        """
        Raises:
            MethodNotAllowed: there is none for this method.
        """
        found = self.methods.get("GET" if method == "HEAD" else method)
        if found is None:
            raise MethodNotAllowed(", ".join([*self.methods, "HEAD"] if "GET" in self.methods else self.methods))
        return found
