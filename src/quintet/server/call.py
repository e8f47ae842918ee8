"""What is at a path, and what it is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from quintet.dialects.base import ErrorReply
from quintet.dialects.catalog import Provider
from quintet.errors import BodyTooLarge, MethodNotAllowed, SlowBody
from quintet.server.auth import ANYBODY, Caller
from quintet.server.http import Request
from quintet.server.refusals import reason
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

    async def refuse(self, error: Exception, reply: ErrorReply) -> None:
        """Answer with an error, in whosever words; what is left of a body that will not be read ends the connection."""
        self.facts["refused"] = reason(error)
        unread = isinstance(error, SlowBody) or (isinstance(error, BodyTooLarge) and self.http.endless)
        close = [("connection", "close")] if unread else []
        await self.http.reply(reply.status, reply.body, [*reply.headers, *close])


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

    def is_in(self, dialect: str) -> bool:
        """Whether that one has it."""
        return self.dialects is None or dialect in self.dialects

    def endpoint(self, method: str) -> Endpoint:
        """
        Raises:
            MethodNotAllowed: there is none for this method.
        """
        endpoint = self.methods.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            allowed = [*self.methods, "HEAD"] if "GET" in self.methods else [*self.methods]
            raise MethodNotAllowed(", ".join(allowed))
        return endpoint
