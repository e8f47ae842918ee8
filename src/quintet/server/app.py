"""The ASGI application: whose words, who asks, which endpoint, and errors as the dialect words them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from quintet.config import ServerConfig
from quintet.dialects.catalog import PROVIDERS
from quintet.dialects.completion.dialect import Completion
from quintet.dialects.fim.dialect import FimCompletion
from quintet.dialects.fim.wire import error as fim_error
from quintet.dialects.infill.dialect import Infill
from quintet.engines.registry import Registry
from quintet.errors import CLOSING, NotFound, Overloaded, QuintetError
from quintet.keys.limits import Limiter
from quintet.ledger.ledger import Ledger
from quintet.logs import REQUEST
from quintet.server import pages, static
from quintet.server.accounts import Accounts
from quintet.server.admin import Admin
from quintet.server.asgi import ASGIApp, Receive, Scope, Send
from quintet.server.auth import ANYBODY, Auth
from quintet.server.batches import batch_routes
from quintet.server.body_room import BodyHold, BodyRoom
from quintet.server.call import Call, Endpoint, Route
from quintet.server.completions import CompletionApi, Completions
from quintet.server.cors import Cors
from quintet.server.gate import Gate
from quintet.server.hosts import Hosts
from quintet.server.http import ADMIN, CLIENT_LEFT, PUBLIC, ClientGoneError, Request
from quintet.server.idempotency import Once
from quintet.server.kept import Kept
from quintet.server.large_answers import LargeAnswers
from quintet.server.lines import FOREVER_S, Lines, engine_of
from quintet.server.metrics import OTHER, Telemetry
from quintet.server.models import Models
from quintet.server.others import ForeignCompletions, Properties
from quintet.server.probes import Probes
from quintet.server.proxies import Proxies
from quintet.server.routing import HEADER, Router, named
from quintet.server.source import Source
from quintet.server.telemetry import log_access
from quintet.server.tokens import Tokens
from quintet.server.tracing import Tracing

_log = logging.getLogger(__name__)

KEEP_ALIVE = 15.0
"""Seconds of silence in an answer before something is sent; some SDKs give up after 60."""

FLUSH_S = 1.0
"""Most time at the end for spans that were not sent yet; a server that is told to end at once has little more."""

_WARMING = frozenset(name for name, provider in PROVIDERS.items() if provider.warming)
_PROJECTS = frozenset(name for name, provider in PROVIDERS.items() if provider.of_project)

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})


def create_app(
    models: Registry,
    config: ServerConfig,
    *,
    source: Source | None = None,
    keep_alive: float = KEEP_ALIVE,
    ledger: Ledger | None = None,
    auth: Auth | None = None,
    tracing: Tracing | None = None,
) -> ASGIApp:
    """The application that serves ``models``; it closes them, and ``tracing``, when the server shuts down.

    Run it with uvicorn's ``server_header=False``. The clock of ``ledger`` and ``auth``, if they are given, must be the source's.

    Raises:
        KeyFileError: a file of keys is missing, unsafe or malformed.
        ProxyError: a trusted proxy is no network.
    """
    source = source or Source()
    return App(models, config, source, keep_alive, ledger, auth or Auth.of(config, source.clock, source.now), tracing)


class App:
    """See ``create_app``."""

    def __init__(
        self,
        registry: Registry,
        config: ServerConfig,
        source: Source,
        keep_alive: float,
        ledger: Ledger | None,
        auth: Auth,
        tracing: Tracing | None,
    ) -> None:
        self._registry, self._source = registry, source
        self._auth, self._tracing = auth, tracing
        self._proxies = Proxies(config.trusted_proxy)
        moderating = [name for name, entry in registry.entries.items() if entry.model.moderation is not None]
        self._telemetry = Telemetry(registry.entries, source.clock, ledger, moderating, registry.guides.checked)
        self._hosts, self._cors = Hosts(config.allowed_hosts), Cors(config.cors_origins)
        self._bodies, self._answers = BodyRoom(config.max_body_bytes), LargeAnswers(registry.executor)
        models = Models(registry, int(source.now()), self._cors)
        gate = Gate(Limiter(config.max_per_key, source.clock, source.now, ledger), config)
        once = Once(config.max_body_bytes, source.clock, gate)
        completions_of = partial(
            Completions,
            models=models,
            gate=gate,
            telemetry=self._telemetry,
            accounts=Accounts(ledger),
            executor=registry.executor,
        )

        without_deadline = replace(config, timeout=0.0)

        def for_nobody(source: Source) -> Completions:
            return completions_of(source=source, config=without_deadline, keep_alive=FOREVER_S)

        lines, engine = Lines(for_nobody, self._auth, source), partial(engine_of, registry)
        self._kept = Kept(config.batches, lines, config.max_body_bytes, source.now, engine)
        completing = _completing(completions_of(source=source, config=config, keep_alive=keep_alive), once)
        self._traced = completing.keys()  # what else is asked for is no work of a model
        probes = Probes(registry, self._telemetry)
        self._probes = frozenset(path.encode() for path in probes.public())
        self._public = frozenset(path.encode() for path in (*probes.public(), *pages.public(), *static.public()))
        administration = Admin(registry, models, self._auth, config, source).routes()
        kept = batch_routes(self._kept, source, self._cors, once, self._answers, strict=config.strict)
        resources = {**completing, **kept, **self._about_models(models, probes, config)}
        self._routers = _routers(probes, resources, administration, config)

    def _about_models(self, models: Models, probes: Probes, config: ServerConfig) -> dict[str, Route]:
        """The routes that tell of models and their tokens, and the one that an SDK asks only to be connected."""
        tokens = Tokens(models, config.max_body_bytes, self._answers, strict=config.strict)
        llama = Properties(models)
        return {
            "/props": Route("/props", {"GET": llama.props}),
            "/slots": Route("/slots", {"GET": llama.slots}),
            "/models": Route("/models", {"GET": models.list}),
            "/models/": Route("/models/{name}", {"GET": models.show}),
            "/v2/": Route("/v2/projects/{project}/models", {"GET": models.of_project}, _PROJECTS),
            "/tokenize": Route("/tokenize", {"POST": tokens.tokenize}),
            "/detokenize": Route("/detokenize", {"POST": tokens.detokenize}),
            "/tokenizer_info": Route("/tokenizer_info", {"GET": tokens.info}),
            "/tcp_warming": Route("/tcp_warming", {"GET": probes.warm}, _WARMING),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(Request(scope, receive, send, f"req-{self._source.token()}"))
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})  # before accept: a plain 403

    async def _http(self, request: Request) -> None:
        REQUEST.set(request.request_id)
        arrived = self._source.clock()
        match = self._routers[request.listener].match(request)
        call = Call(request, match.provider, match.route, tail=match.tail, arrived=arrived)
        request.always += (*self._cors.headers(request), (HEADER, match.provider.name))
        try:
            self._check_connection(request)
            preflight = self._cors.preflight(request)
            if preflight is not None:
                await request.reply(200, b"", preflight, "text/plain")
                return
            call = self._admit(call)
            with request.reading():
                await self._handle(call)
        except ClientGoneError:
            pass
        except asyncio.CancelledError:  # the server ends, and waits no longer
            if request.started:
                raise
            await self._refuse(call, Overloaded(CLOSING))
        except Exception as error:
            if request.started:  # too late for a status: the server cuts the connection, which no client takes for an end
                raise
            await self._refuse(call, error)
        finally:
            self._note(call)

    def _check_connection(self, request: Request) -> None:
        """What can be refused whatever the path and the key.

        Raises:
            WrongHost: meant for another.
            Overloaded: over a connection too many, and no probe.
        """
        self._hosts.require(request.headers)
        if request.crowded and request.raw_path not in self._probes:
            raise Overloaded("The server has as many connections as it takes.")

    def _admit(self, call: Call) -> Call:
        """Everything that is decided before the path is looked at: nobody learns without a key what exists."""
        request = call.http
        request.address = self._proxies.client(request.address, request.headers.raw)
        # The raw path, so that no spelling of another path is public, and by name, so that every path to come needs a key.
        caller = ANYBODY if request.raw_path in self._public else self._auth.require(request.headers.raw, request.address)
        request.check_head()
        request.hold = BodyHold(self._bodies, caller.id or request.address, request.lost)
        provider = named(request) or call.provider
        request.always[-1] = (HEADER, provider.name)  # in place of the one of the path's, which ``_http`` has put there
        return replace(call, provider=provider, caller=caller)

    async def _handle(self, call: Call) -> None:
        if call.route is None or not call.route.is_in(call.provider.name):
            raise NotFound(f"There is nothing at this path{self._instead(call)}.")
        await call.route.endpoint(call.http.method)(call)

    def _instead(self, call: Call) -> str:
        """Where to look; of a second address no more than that there is one, for it may be meant for few."""
        request = call.http
        others = [router.match(request).route for listener, router in self._routers.items() if listener != request.listener]
        if any(route is not None and route.is_in(call.provider.name) for route in others):
            return " here: it is at the server's other address"
        completing = "POST /v1/completions" if request.listener == PUBLIC else "the server's other address"
        return f"; completions are at {completing}"

    async def _refuse(self, call: Call, error: Exception) -> None:
        if not isinstance(error, QuintetError):
            _log.error("request %s: unexpected error", call.http.request_id, exc_info=error)
        await call.refuse(error, call.provider.dialect.error(error))

    def _note(self, call: Call) -> None:
        """Count and log; also what got no answer because the client left."""
        request, seconds = call.http, self._source.clock() - call.arrived
        handler = call.route.name if call.route else OTHER
        method = request.method if request.method in METHODS else OTHER
        status = request.status or CLIENT_LEFT
        self._telemetry.answered(method, handler, status, seconds)
        if "refused" in call.facts:
            self._telemetry.refused(str(call.facts["refused"]))
        if request.left or not request.started:
            self._telemetry.left("in_answer" if request.started else "before_answer")
        if self._tracing is not None and method == "POST" and handler in self._traced:
            self._tracing.ended(call, status, seconds)
        log_access(
            time=datetime.fromtimestamp(self._source.now(), UTC).isoformat(timespec="milliseconds"),
            method=method,
            handler=handler,
            status=status,
            dialect=call.provider.name,
            key=call.caller.id,
            **call.facts,
            ms=round(seconds * 1000, 1),
            request_id=request.request_id,
        )

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._kept.begin()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._kept.end()
                flush = [asyncio.to_thread(self._tracing.close, FLUSH_S)] if self._tracing is not None else []
                await asyncio.gather(self._registry.close(), *flush)
                await send({"type": "lifespan.shutdown.complete"})
                return


def _completing(completions: Completions, once: Once) -> dict[str, Route]:
    """The routes of completions, in the dialects' shape and in others'."""
    endpoints: dict[str, Endpoint] = {
        "/completions": completions,
        "/infill": ForeignCompletions.llama(completions, Infill()),
        "/completion": ForeignCompletions.llama(completions, Completion()),
        "/fim/completions": ForeignCompletions(completions, CompletionApi("Mistral", FimCompletion()), fim_error),
    }
    return {path: Route(path, {"POST": once.of(endpoint)}) for path, endpoint in endpoints.items()}


def _routers(
    probes: Probes, resources: Mapping[str, Route], administration: Mapping[str, Route], config: ServerConfig
) -> dict[str, Router]:
    """That of each listener: one for all, or one for everybody and one for administrators.

    Args:
        resources: beneath every base.
        administration: beneath every base too, for administrators.
    """
    plain = {**probes.public(), **pages.public(), "/version": probes.version}
    for_people = {**plain, **static.routes()}
    for_operators = {"/metrics": probes.metrics, "/health/models": probes.models, "/load": probes.load}
    if not config.admin_listener:
        return {PUBLIC: _router({**for_people, **for_operators}, {**resources, **administration}, config)}
    models = {path: resources[path] for path in ("/models", "/models/")}
    return {
        PUBLIC: _router(for_people, {**resources, **_hidden(administration)}, config),
        ADMIN: _router({**plain, **for_operators}, {**models, **administration}, config),
    }


def _hidden(routes: Mapping[str, Route]) -> dict[str, Route]:
    """The same paths, and nothing there in any dialect: without routes of their own they were names of models."""
    return {path: replace(route, dialects=frozenset()) for path, route in routes.items()}


def _router(plain: Mapping[str, Endpoint], resources: Mapping[str, Route], config: ServerConfig) -> Router:
    return Router({path: Route(path, {"GET": endpoint}) for path, endpoint in plain.items()}, resources, config.dialect)
