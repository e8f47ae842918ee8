"""What an endpoint is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from quintet.dialects.catalog import Provider
from quintet.server.auth import Caller
from quintet.server.http import Request

Fact = str | float | None


@dataclass(frozen=True, slots=True)
class Call:
    """A request that may be answered.

    Args:
        provider: in whose words.
        caller: who asks.
        resource: the path without the provider's prefix.
        arrived: seconds on the telemetry's clock.
        facts: what the endpoint adds to the access log.
    """

    http: Request
    provider: Provider
    caller: Caller
    resource: str
    arrived: float
    facts: dict[str, Fact] = field(default_factory=dict)


Endpoint = Callable[[Call], Awaitable[None]]
