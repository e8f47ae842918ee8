"""``quintet serve``: options checked, sockets opened, models found; then its ``Life`` begins."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quintet import __version__, machine
from quintet.backends.native.front.spawn import Ahead
from quintet.batches.folder import Folder, in_use
from quintet.children import keep_private
from quintet.cli import cluster, exporting, net
from quintet.cli import fleet as fleets
from quintet.cli.cluster import ClusterOptions
from quintet.cli.console import ConsoleReport, OptionError
from quintet.cli.heart import WATCHDOG_S
from quintet.cli.plans import Plan
from quintet.cli.telling import TellOptions
from quintet.cli.values import telling
from quintet.config import LOG_LEVELS, BatchConfig, LedgerConfig, ServerConfig
from quintet.engines.entry import Model
from quintet.errors import counted, shorten
from quintet.keys.salts import lasting_secret
from quintet.listen import limits
from quintet.listen.sockets import ADMIN, PUBLIC, Inherited, Listener, url
from quintet.models.files import human
from quintet.server.auth import Auth
from quintet.server.proxies import Proxies

DRAIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What to serve, where, to whom.

    Args:
        drain_timeout: most seconds from SIGTERM until the answers that still run are ended.
        watchdog: see ``Heart``.
        ledger: how to keep one; ``None`` = none is kept.
        cluster: where engines run; ``None`` = on this machine.
    """

    fleet: fleets.FleetOptions
    config: ServerConfig
    listen: net.ListenOptions
    no_api_key: bool
    told: TellOptions
    drain_timeout: float = DRAIN_S
    watchdog: float = WATCHDOG_S
    ledger: LedgerConfig | None = None
    cluster: ClusterOptions | None = None


def serve(options: ServeOptions, ahead: Ahead) -> int:
    """Serve until told to stop; the exit code.

    Args:
        ahead: where engines' processes come from.

    Raises:
        QuintetError: it cannot start, in one clear line.
    """
    config, auth = checked(options)
    if options.ledger is None and auth.lasting:
        ConsoleReport().note(f"keys with a budget or tokens per day: {auth.lasting}; without --ledger these begin anew at each start")
    if options.cluster is not None and options.cluster.proxy:
        from quintet.cli import proxied

        return proxied.serve(options, auth)
    keys = auth.keys
    most = limits.most_connections(options.listen.max_connections, limits.raise_descriptors())
    with telling({"--tls-cert": options.listen.tls_cert, "--tls-key": options.listen.tls_key}):
        tls = options.listen.tls()
    given = options.listen.open()
    try:
        for listener in given.listeners:
            address = listener.address or net.HOST
            net.check_exposure(address, config.api_keys, no_key=options.no_api_key, closed=keys is not None)
        with ConsoleReport() as report:
            fleet = fleets.plan(options.fleet, report)
        if options.cluster is None:
            fleet = fleet.begin(ahead)
        else:
            cluster.join(options.cluster, options.fleet)
            fleet = cluster.distributed(fleet, options.cluster, options.fleet)
        from quintet.cli import serving

        serving.log_to_stderr(options.told.level, options.told.form)
        exports = exporting.check(options.told.otlp_endpoint, os.environ)
        public = next(listener for listener in given.listeners if listener.name == PUBLIC)
        where = url(public.sock, "http" if tls is None else "https")
        said = banner(fleet, where, access(given.listeners, keys), whole=os.isatty(1), path=public.path)
        server = serving.Serving(
            fleet=fleet,
            config=_settings(config, options.listen, given, keyless=keys is None),
            auth=auth,
            given=given,
            tls=tls,
            most=most,
            banner=said,
            drain=options.drain_timeout,
            watchdog=options.watchdog,
            ledger=options.ledger,
            otlp=options.told.otlp_endpoint if exports else None,
        )
        return server.run()
    finally:
        for listener in given.listeners:
            listener.close()


def checked(options: ServeOptions) -> tuple[ServerConfig, Auth]:
    """The settings, and who may ask; what is wrong with them is told before anything is loaded.

    Raises:
        QuintetError: it is, in one clear line.
    """
    check(options)
    config = options.config
    keep_private()
    if (prefixes := options.fleet.engine.prefixes) is not None:
        config = replace(config, salt_secret=_secret_of(Path(prefixes.folder)))
    with telling({"--api-key-file": config.api_key_file, "--keys": config.keys}):
        return config, Auth.of(config, time.monotonic, time.time)


def check(options: ServeOptions) -> None:
    """
    Raises:
        QuintetError: something is wrong with the options, whatever this machine has.
    """
    config = options.config
    if options.told.level not in LOG_LEVELS:
        raise OptionError(f"--log-level must be one of {', '.join(LOG_LEVELS)}, got {options.told.level!r}.")
    if config.dialect != ServerConfig().dialect:
        _check_dialect(config.dialect)
    if "" in options.fleet.names:
        raise OptionError("--served-model-name must not be empty.")
    options.listen.check()
    Proxies(config.trusted_proxy)
    fleets.check(options.fleet)


def _settings(config: ServerConfig, listen: net.ListenOptions, given: Inherited, *, keyless: bool) -> ServerConfig:
    """With what the open sockets and their options have to say.

    Raises:
        OptionError: see ``_batches``.
    """
    return replace(
        config,
        allowed_hosts=net.answered_hosts([listener.address for listener in given.listeners], listen.allowed_host, keyless=keyless),
        cors_origins=listen.cors_origin,
        admin_listener=any(listener.name == ADMIN for listener in given.listeners),
        batches=_batches(config.batches, waits=given.waits),
    )


def _batches(config: BatchConfig | None, *, waits: bool) -> BatchConfig | None:
    """How batches are kept.

    Args:
        waits: for another process, which hands over to this one.

    Raises:
        OptionError: not in the folder that was asked for.
    """
    if config is None:
        return None
    if config.chosen:
        with telling({"--batch-dir": config.folder}):
            folder = Folder(config.folder)
            if not folder.take() and not waits:
                raise in_use(config.folder)
            folder.leave()
    return replace(config, waits=waits)


def _secret_of(folder: Path) -> bytes:
    try:
        return lasting_secret(folder)
    except FileExistsError:
        raise OptionError(f"--prefix-cache-dir {folder} is not a folder.") from None
    except (OSError, ValueError) as error:
        reason = f"{error.filename or folder}: {error.strerror}" if isinstance(error, OSError) and error.strerror else error
        raise OptionError(f"--prefix-cache-dir cannot be used: {reason}.") from None


def _check_dialect(name: str) -> None:
    from quintet.dialects.catalog import PROVIDERS  # else first needed when the models are known, see ``serving``
    from quintet.server.routing import AUTO

    if name not in (*PROVIDERS, AUTO):
        raise OptionError(f"--dialect must be one of {', '.join((*PROVIDERS, AUTO))}, got {shorten(name)}.")


def access(listeners: Sequence[Listener], keys: int | None) -> str:
    """Who may ask, for the banner; never a key itself."""
    if keys is not None:
        return counted(keys, "API key")
    return f"no API key: {'this machine only' if all(listener.local for listener in listeners) else 'everybody who can reach it'}"


def banner(fleet: fleets.Fleet, url: str, access: str, *, whole: bool, path: str = "") -> str:
    """What is served and where: a block with a command to paste for people, one line for logs.

    Args:
        path: of the Unix socket; empty = it is none.
    """
    name, threads = fleet.names.default.name, max(plan.threads for plan in fleet.plans)
    models = [_model(plan, model) for plan, model in zip(fleet.plans, fleet.models, strict=True)]
    quota, limit = machine.cpu_quota(), machine.memory_limit()
    share = f" (a container with the time of {counted(quota, 'CPU')})" if quota is not None else ""
    computing = f"{fleet.plans[0].isa}, {counted(threads, 'thread')}{share}" if threads else "vLLM"
    of = f" (a container with {human(limit)})" if limit is not None else ""
    cache = " + ".join(map(_cache, fleet.plans)) + of
    on, over = (f" on {path}", f"--unix-socket {shlex.quote(path)} ") if path else ("", "")
    if not whole:
        return f"quintet {__version__}: {', '.join(models)} at {url}/v1{on}, {computing}, KV cache {cache}, {access}\n"
    key = "" if access.startswith("no") else ' -H "Authorization: Bearer $QUINTET_API_KEY"'
    body = json.dumps({"model": name, "prompt": "The sky is", "max_tokens": 32})
    listed = "\n           ".join(models)
    return f"""
  Quintet {__version__}   {url}/v1{on}

  model    {listed}
  engine   {"native, " if threads else ""}{computing}
  memory   KV cache {cache}
  access   {access}

  curl {over}{url}/v1/completions -H "Content-Type: application/json"{key} \\
    -d {shlex.quote(body)}

  Ctrl-C stops.
"""


def _cache(plan: Plan) -> str:
    size = human(plan.config.kv_bytes) if plan.config.kv_bytes else "as vLLM has it"
    return f"{size} for {plan.kv_tokens} tokens" if plan.kv_tokens else size


def _model(plan: Plan, model: Model) -> str:
    of = f" of {plan.full_context}" if plan.context < plan.full_context else ""
    when = ", loaded when it is asked for" if model.lazy else ""
    of += f", drafts by {plan.draft}" if plan.draft else ""
    role = f", moderation as {model.moderation.name}" if model.moderation else ""
    return f"{model.name} ({plan.quant + ', ' if plan.quant else ''}context {plan.context}{of}{role}{when})"
