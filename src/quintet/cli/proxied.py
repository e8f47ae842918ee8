"""``quintet cluster --ray-proxy``: the front in a process of Ray Serve's, behind its HTTP proxy."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintet import __version__
from quintet.backends.base import State
from quintet.cli import cluster, exporting, fleet, net, serving
from quintet.cli.console import ConsoleReport
from quintet.cli.interrupt import on_interrupt
from quintet.listen.sockets import addresses
from quintet.listen.sockets import listen as listen_once
from quintet.server.app import create_app
from quintet.server.auth import Auth

if TYPE_CHECKING:
    from quintet.cli.serve import ServeOptions


class Front:
    """See ``deploy.ray.Front``; it begins to load at once.

    Args:
        folder: where the command was given, to which its paths are relative; Ray has its processes in others.
    """

    def __init__(self, options: ServeOptions, folder: Path) -> None:
        from quintet.cli.serve import checked

        os.chdir(folder)
        serving.log_to_stderr(options.told.level, options.told.form)
        config, auth = checked(options)
        with ConsoleReport() as report:
            planned = fleet.plan(options.fleet, report)
        assert options.cluster is not None
        self._models = cluster.distributed(planned, options.cluster, options.fleet).open()
        self._ledger = serving.opened(options.ledger)
        hosts = net.answered_hosts(addresses(options.listen.host), options.listen.allowed_host, keyless=auth.keys is None)
        config = replace(config, allowed_hosts=hosts, cors_origins=options.listen.cors_origin)
        otlp = options.told.otlp_endpoint
        tracing = exporting.tracing(otlp, os.environ) if exporting.check(otlp, os.environ) else None
        self._app = create_app(self._models, config, ledger=self._ledger, auth=auth, tracing=tracing)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)
        if scope["type"] == "lifespan" and self._ledger is not None:
            self._ledger.close()

    def require_healthy(self) -> None:
        """See ``deploy.ray.Front``."""
        if all(entry.health().state is State.DEAD for entry in self._models.entries.values()):
            raise RuntimeError("every engine is dead")


def serve(options: ServeOptions, auth: Auth) -> int:
    """Serve until told to stop; the exit code.

    Raises:
        QuintetError: it cannot start, in one clear line.
    """
    listen, config = options.listen, options.config
    assert options.cluster is not None
    net.check_exposure(listen.host, config.api_keys, no_key=options.no_api_key, closed=auth.keys is not None)
    if not options.cluster.address:  # nobody's Serve runs there yet, which would listen elsewhere
        listen_once(listen.host, listen.port, free=False).close()
    exporting.check(options.told.otlp_endpoint, os.environ)
    with ConsoleReport() as report:  # here as well as in the front, whose errors come through Serve after many of its own lines
        planned = fleet.plan(options.fleet, report)
    cluster.join(options.cluster, options.fleet)
    cluster.distributed(planned, options.cluster, options.fleet)
    from quintet.deploy import ray

    with ray.listening(ray.behind_proxy(partial(Front, options, Path.cwd())), listen.host, listen.port):
        sys.stdout.write(f"quintet {__version__}: at http://{listen.host}:{listen.port}/v1, behind Ray Serve's proxy\n")
        sys.stdout.flush()
        asyncio.run(_until_stopped())
    return 0


async def _until_stopped() -> None:
    await on_interrupt().wait()
