"""``quintet serve``: listen, load, serve, drain on SIGTERM, and stop within two seconds on Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shlex
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn
import uvloop

from quintet import __version__
from quintet.cli import engines, net
from quintet.cli import fleet as fleets
from quintet.cli.console import ConsoleReport, OptionError
from quintet.cli.interrupt import end_within, on_stop, unless
from quintet.cli.loading import ready
from quintet.cli.protocol import Protocol
from quintet.config import LedgerConfig, ServerConfig
from quintet.dialects.catalog import PROVIDERS
from quintet.engines.entry import Model
from quintet.engines.registry import Registry
from quintet.errors import shorten
from quintet.keys.sources import key_sources
from quintet.ledger.ledger import Ledger
from quintet.logs import FORMAT, Lines, LinesHandler
from quintet.models.files import human
from quintet.server.app import create_app
from quintet.server.proxies import Proxies
from quintet.server.routing import AUTO
from quintet.server.telemetry import ACCESS

_log = logging.getLogger(__name__)
_LEVELS = ("error", "warning", "info", "debug")
DRAIN_S = 30.0
_POLL_S = 0.02
_GRACE_S = 0.5  # for answers that are nearly done; then the engine ends the rest, and their clients see it
_CUT_S = 1  # for those that still do not end
_END_S = 1.2  # for everything after the grace; in all less than two seconds


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What to serve, where, to whom.

    Args:
        drain_timeout: most seconds from SIGTERM until the answers that still run are ended.
        ledger: how to keep one; ``None`` = none is kept.
    """

    fleet: fleets.FleetOptions
    config: ServerConfig
    no_api_key: bool
    log_level: str
    drain_timeout: float = DRAIN_S
    ledger: LedgerConfig | None = None


def serve(options: ServeOptions) -> int:
    """Serve until told to stop; the exit code.

    Raises:
        QuintetError: it cannot start, in one clear line.
    """
    config = options.config
    if options.log_level not in _LEVELS:
        raise OptionError(f"--log-level must be one of {', '.join(_LEVELS)}, got {options.log_level!r}.")
    if config.dialect not in (*PROVIDERS, AUTO):
        raise OptionError(f"--dialect must be one of {', '.join((*PROVIDERS, AUTO))}, got {shorten(config.dialect)}.")
    if "" in options.fleet.names:
        raise OptionError("--served-model-name must not be empty.")
    keys = _count_keys(config)
    net.check_exposure(config.host, config.api_keys, options.no_api_key, closed=keys is not None)
    Proxies(config.trusted_proxy)  # a mistyped network is told before anything is loaded
    if config.admin_key:
        net.check_key(config.admin_key, "the admin key")
    with net.listen(config.host, config.port) as sock:
        with ConsoleReport() as report:
            fleet = fleets.plan(options.fleet, report)
        _log_to_stderr(options.log_level)
        with _ledger(options.ledger) as ledger:
            return uvloop.run(_serve(sock, fleet, options, ledger, access(config.host, keys)))


@contextlib.contextmanager
def _ledger(config: LedgerConfig | None) -> Iterator[Ledger | None]:
    """The ledger, if one is to be kept; its last rows are written at the end.

    Raises:
        LedgerError: it cannot be opened.
    """
    ledger = Ledger(config) if config else None
    try:
        yield ledger
    finally:
        if ledger is not None:
            ledger.close()


async def _serve(sock: socket.socket, fleet: fleets.Fleet, options: ServeOptions, ledger: Ledger | None, who: str) -> int:
    stop, at_once = on_stop()
    models = fleet.open()
    server = _server(models, options.config, ledger)
    serving = asyncio.create_task(server.serve([sock]))
    try:
        if await unless(stop, _loaded(models)):
            Lines(1).write(banner(fleet, net.url(sock), who, whole=os.isatty(1)))  # whether anybody reads it or not
            await unless(stop, _ended(serving))
            await unless(at_once, _drained(server, models, options.drain_timeout))
        return 0
    finally:
        await _shut_down(server, serving, models)


async def _ended(serving: asyncio.Task[None]) -> None:
    await asyncio.shield(serving)


async def _loaded(models: Registry) -> None:
    """Wait for what is loaded at the start; all of it at the same time.

    Raises:
        ModelError, EngineFailed: one cannot be.
    """
    for entry in models.entries.values():
        if entry.backend is not None:
            await ready(entry.backend, entry.name)


async def _drained(server: uvicorn.Server, models: Registry, seconds: float) -> None:
    """Refuse new work, still answering that, until what there is is done, or time is up."""
    models.drain()
    try:
        async with asyncio.timeout(seconds):
            while models.live or server.server_state.tasks:
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        _log.warning("%d choices are not done after %g s of draining; they are ended", models.live, seconds)


async def _shut_down(server: uvicorn.Server, serving: asyncio.Task[None], models: Registry) -> None:
    """Refuse new work, let answers end that are nearly done, then end the others."""
    server.should_exit = True
    await asyncio.wait((serving,), timeout=_GRACE_S)
    await end_within(_END_S, 0, models.close(), serving)


class _Server(uvicorn.Server):
    """Signals are ours: uvicorn would raise them again at the end, which kills the process in the middle of its clean-up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(models: Registry, config: ServerConfig, ledger: Ledger | None) -> uvicorn.Server:
    settings = uvicorn.Config(
        create_app(models, config, ledger=ledger),
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_CUT_S,
    )
    return _Server(settings)


def _log_to_stderr(level: str) -> None:
    lines = Lines(2)
    logging.basicConfig(level=level.upper(), handlers=[LinesHandler(lines, FORMAT)])
    ACCESS.addHandler(LinesHandler(lines))  # its lines are whole as they are
    ACCESS.propagate = False
    # Said of an answer that was broken off on purpose; why is in a line of ours.
    logging.getLogger("uvicorn.error").addFilter(lambda record: "without completing response" not in record.msg)
    if level == "info":
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its start and stop lines say less than the banner


def _count_keys(config: ServerConfig) -> int | None:
    """Those in force now; ``None`` = none is needed.

    Raises:
        KeyFileError: a file of keys is missing, unsafe or malformed.
    """
    sources = key_sources(config)
    if not config.api_keys and not sources:
        return None
    return len(config.api_keys) + sum(key.live(time.time()) for source in sources for key in source.read())


def access(host: str, keys: int | None) -> str:
    """Who may ask, for the banner; never a key itself."""
    if keys is not None:
        return f"{keys} API key{'s' if keys != 1 else ''}"
    return f"no API key: {'this machine only' if net.is_loopback(host) else 'everybody who can reach it'}"


def banner(fleet: fleets.Fleet, url: str, access: str, *, whole: bool) -> str:
    """What is served and where: a block with a command to paste for people, one line for logs."""
    name, threads = fleet.names.default.name, max(plan.threads for plan in fleet.plans)
    models = [_model(plan, model) for plan, model in zip(fleet.plans, fleet.models, strict=True)]
    computing = f"{fleet.plans[0].isa}, {threads} thread{'s' if threads > 1 else ''}"
    cache = " + ".join(f"{human(plan.config.kv_bytes)} for {plan.kv_tokens} tokens" for plan in fleet.plans)
    if not whole:
        return f"quintet {__version__}: {', '.join(models)} at {url}/v1, {computing}, KV cache {cache}, {access}\n"
    key = "" if access.startswith("no") else ' -H "Authorization: Bearer $QUINTET_API_KEY"'
    body = json.dumps({"model": name, "prompt": "The sky is", "max_tokens": 32})
    listed = "\n           ".join(models)
    return f"""
  Quintet {__version__}   {url}/v1

  model    {listed}
  engine   native, {computing}
  memory   KV cache {cache}
  access   {access}

  curl {url}/v1/completions -H "Content-Type: application/json"{key} \\
    -d {shlex.quote(body)}

  Ctrl-C stops.
"""


def _model(plan: engines.Plan, model: Model) -> str:
    of = f" of {plan.full_context}" if plan.context < plan.full_context else ""
    when = ", loaded when it is asked for" if model.lazy else ""
    return f"{model.name} ({plan.quant + ', ' if plan.quant else ''}context {plan.context}{of}{when})"
