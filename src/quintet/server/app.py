"""The ASGI application: whose words, who asks, which handler, and errors as the dialect words them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.types import ASGIApp, Receive, Scope, Send

from quintet.backends.base import Backend
from quintet.config import ServerConfig
from quintet.errors import BodyTooLarge, MethodNotAllowed, NotFound, QuintetError, SlowBody
from quintet.inputs.prepare import Preparer
from quintet.server import pages
from quintet.server.auth import ANYBODY, Keys
from quintet.server.call import Call, Handler
from quintet.server.completions import Completions, Source
from quintet.server.exchange import ClientGoneError, Exchange
from quintet.server.infill import Infill
from quintet.server.models import Models
from quintet.server.mounts import HEADER, Mounts, named
from quintet.server.probes import Probes
from quintet.server.telemetry import Telemetry, log_access
from quintet.server.tokens import Tokens

_log = logging.getLogger(__name__)

KEEP_ALIVE = 15.0
"""Seconds of silence in an answer before something is sent; some SDKs give up after 60."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})
OTHER = "other"


def create_app(
    backend: Backend, preparer: Preparer, config: ServerConfig, *, source: Source | None = None, keep_alive: float = KEEP_ALIVE
) -> ASGIApp:
    """The application that serves ``backend``; it closes both when the server shuts down.

    Run it with uvicorn's ``server_header=False``.

    Raises:
        KeyFileError: the key file is missing, unsafe or malformed.
    """
    return App(backend, preparer, config, source or Source(), keep_alive)


@dataclass(frozen=True, slots=True)
class Route:
    """What is at a path.

    Args:
        name: for metrics and logs.
        methods: ``GET`` stands for ``HEAD`` too.
    """

    name: str
    methods: Mapping[str, Handler]


class App:
    """See ``create_app``."""

    def __init__(self, backend: Backend, preparer: Preparer, config: ServerConfig, source: Source, keep_alive: float) -> None:
        self._backend = backend
        self._preparer = preparer
        self._source = source
        self._mounts = Mounts(config.dialect)
        self._keys = Keys(config.api_keys, config.api_key_file, source.clock)
        self._telemetry = Telemetry(config.model_names[0] if config.model_names else "", source.clock)
        self._models = Models(backend, config.model_names, int(source.now()))
        probes = Probes(backend, self._telemetry)
        completions = Completions(backend, preparer, self._models, source, config, self._telemetry, keep_alive)
        tokens = Tokens(backend, preparer, self._models, config.max_body_bytes)
        public = {**probes.public(), **pages.public()}
        self._public = frozenset(path.encode() for path in public)
        plain = {**public, "/version": probes.version, "/metrics": probes.metrics}
        self._plain = {path: Route(path, {"GET": handler}) for path, handler in plain.items()}
        self._resources = {
            "/completions": Route("/completions", {"POST": completions}),
            "/infill": Route("/infill", {"POST": Infill(backend, preparer, completions)}),
            "/models": Route("/models", {"GET": self._models.list}),
            "/tokenize": Route("/tokenize", {"POST": tokens.tokenize}),
            "/detokenize": Route("/detokenize", {"POST": tokens.detokenize}),
            "/tokenizer_info": Route("/tokenizer_info", {"GET": tokens.info}),
        }
        self._model = Route("/models/{name}", {"GET": self._models.show})
        self._warming = Route("/tcp_warming", {"GET": probes.warm})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(Exchange(scope, receive, send, f"req-{self._source.token()}"))
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})  # before accept: a plain 403

    async def _http(self, exchange: Exchange) -> None:
        arrived = self._source.clock()
        target = self._mounts.find(exchange)
        call = Call(exchange, target.provider, ANYBODY, target.resource, arrived)
        try:
            call = self._admit(call)
            await self._handle(call)
        except ClientGoneError:
            pass
        except Exception as error:
            if exchange.started:  # too late for a status: the server cuts the connection, which no client takes for an end
                raise
            await self._refuse(call, error)
        finally:
            self._note(call)

    def _admit(self, call: Call) -> Call:
        """Everything that is decided before the path is looked at: nobody learns without a key what exists."""
        exchange = call.exchange
        exchange.always.append((HEADER, call.provider.name))
        # The raw path, so that no spelling of another path is public, and by name, so that every path to come needs a key.
        caller = ANYBODY if exchange.raw_path in self._public else self._keys.require(exchange.raw_headers, exchange.address)
        exchange.check_head()
        provider = named(exchange) or call.provider
        exchange.always[-1] = (HEADER, provider.name)
        return Call(exchange, provider, caller, call.resource, call.arrived, call.facts)

    def _route(self, call: Call) -> Route | None:
        if call.exchange.path in self._plain:
            return self._plain[call.exchange.path]
        if call.resource == "/tcp_warming" and call.provider.warming:
            return self._warming
        return self._model if call.resource.startswith("/models/") else self._resources.get(call.resource)

    async def _handle(self, call: Call) -> None:
        route = self._route(call)
        if route is None:
            raise NotFound("There is nothing at this path; completions are at POST /v1/completions.")
        method = call.exchange.method
        handler = route.methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            raise MethodNotAllowed(", ".join([*route.methods, "HEAD"] if "GET" in route.methods else route.methods))
        await handler(call)

    async def _refuse(self, call: Call, error: Exception) -> None:
        exchange = call.exchange
        if not isinstance(error, QuintetError):
            _log.error("request %s: unexpected error", exchange.request_id, exc_info=error)
        reply = call.provider.dialect.error(error)
        unread = isinstance(error, SlowBody) or (isinstance(error, BodyTooLarge) and exchange.endless)
        close = [("connection", "close")] if unread else []
        await exchange.reply(reply.status, reply.body, [*reply.headers, *close])

    def _note(self, call: Call) -> None:
        """Count and log; also what got no answer because the client left, as status 499."""
        route = self._route(call)
        handler = route.name if route else OTHER
        exchange, seconds = call.exchange, self._source.clock() - call.arrived
        method, status = exchange.method if exchange.method in METHODS else OTHER, exchange.status or 499
        self._telemetry.answered(method, handler, status, seconds)
        log_access(
            time=datetime.fromtimestamp(self._source.now(), UTC).isoformat(timespec="milliseconds"),
            method=method,
            handler=handler,
            status=status,
            dialect=call.provider.name,
            key=call.caller.id,
            **call.facts,
            ms=round(seconds * 1000, 1),
            request_id=exchange.request_id,
        )

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._backend.close()
                await self._preparer.close()
                await send({"type": "lifespan.shutdown.complete"})
                return
