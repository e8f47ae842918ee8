"""The ASGI application: routes, keys, and errors as the dialect words them."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from quintet.backends.base import Backend, State
from quintet.config import ServerConfig
from quintet.dialects.base import Dialect
from quintet.dialects.openai import OpenAI
from quintet.errors import BodyTooLarge, MethodNotAllowed, NotFound, QuintetError
from quintet.server.auth import Keys
from quintet.server.completions import Completions, Source
from quintet.server.exchange import ClientGoneError, Exchange
from quintet.server.models import Models

_log = logging.getLogger(__name__)

Handler = Callable[[Exchange], Awaitable[None]]

PUBLIC = frozenset({"/health"})
"""Paths that need no key. Everything else does, whether it exists or not."""

KEEP_ALIVE = 15.0
"""Seconds of silence in a stream before a comment is sent; some SDKs give up after 60."""


def create_app(backend: Backend, config: ServerConfig, *, source: Source | None = None, keep_alive: float = KEEP_ALIVE) -> ASGIApp:
    """The application that serves ``backend``; it closes the backend when the server shuts down.

    Run it with uvicorn's ``server_header=False``.
    """
    return App(OpenAI(), backend, config, source or Source(), keep_alive)


class App:
    """See ``create_app``."""

    def __init__(self, dialect: Dialect, backend: Backend, config: ServerConfig, source: Source, keep_alive: float) -> None:
        self._dialect = dialect
        self._backend = backend
        self._source = source
        self._keys = Keys(config.api_keys)
        self._models = Models(dialect, backend, config.model_names, int(source.now()))
        completions = Completions(dialect, backend, self._models, source, config.max_body_bytes, keep_alive)
        self._routes: dict[str, Mapping[str, Handler]] = {"/health": {"GET": self._health}}
        for base in ("/v1", ""):
            self._routes[f"{base}/completions"] = {"POST": completions}
            self._routes[f"{base}/models"] = {"GET": self._models.list}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(Exchange(scope, receive, send, f"req-{self._source.token()}"))
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})  # before accept: a plain 403

    async def _http(self, exchange: Exchange) -> None:
        try:
            if exchange.path not in PUBLIC:
                self._keys.require(exchange.raw_headers)
            await self._route(exchange)(exchange)
        except ClientGoneError:
            pass
        except Exception as error:
            if exchange.started:  # too late for a status: the server cuts the connection, which no client takes for an end
                raise
            await self._refuse(exchange, error)

    def _route(self, exchange: Exchange) -> Handler:
        methods = self._routes.get(exchange.path)
        if methods is None and exchange.path.startswith(("/v1/models/", "/models/")):
            methods = {"GET": self._models.show}
        if methods is None:
            raise NotFound("There is nothing at this path; completions are at POST /v1/completions.")
        handler = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if handler is None:
            raise MethodNotAllowed(", ".join([*methods, "HEAD"] if "GET" in methods else methods))
        return handler

    async def _refuse(self, exchange: Exchange, error: Exception) -> None:
        if not isinstance(error, QuintetError):
            _log.error("request %s: unexpected error", exchange.request_id, exc_info=error)
        reply = self._dialect.error(error)
        close = [("connection", "close")] if isinstance(error, BodyTooLarge) and exchange.endless else []
        await exchange.reply(reply.status, reply.body, [*reply.headers, *close])

    async def _health(self, exchange: Exchange) -> None:
        """200 only while the engine can take work and makes progress."""
        health = self._backend.health()
        if health.state is State.READY:
            await exchange.reply(200, b'{"status":"ok"}')
            return
        body: dict[str, str | float] = {"status": health.state.value}
        if health.state is State.LOADING:
            body["progress"] = round(health.progress, 2)
        await exchange.reply(503, json.dumps(body).encode(), [("retry-after", "1")])

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._backend.close()
                await send({"type": "lifespan.shutdown.complete"})
                return
