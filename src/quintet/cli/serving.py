"""``quintet serve`` once its models are known: the server over HTTP and its ``Life``.

A module of its own, imported only then: that takes a quarter of a second, in which the engines' processes load already.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from dataclasses import dataclass

import uvloop

from quintet import logs
from quintet.cli import exporting
from quintet.cli.fleet import Fleet
from quintet.cli.life import Life
from quintet.cli.values import telling
from quintet.config import LedgerConfig, ServerConfig
from quintet.engines.registry import Registry
from quintet.ledger.ledger import Ledger
from quintet.listen.server import Server
from quintet.listen.sockets import Inherited
from quintet.listen.tls import Tls
from quintet.server.app import create_app
from quintet.server.auth import Auth

_SWITCH_S = 0.001  # so soon the event loop gets the interpreter back from a thread that computes; five times as soon as by default


def log_to_stderr(level: str, form: str) -> None:
    """What is logged from here on."""
    logs.set_up(level.upper(), form)
    # Said of an answer that was broken off on purpose; why is in a line of ours.
    logging.getLogger("uvicorn.error").addFilter(lambda record: "without completing response" not in record.msg)
    if level == "info":
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its start and stop lines say less than the banner


def opened(config: LedgerConfig | None) -> Ledger | None:
    """The ledger, if one is to be kept.

    Raises:
        OptionError: its file cannot be used.
    """
    if config is None:
        return None
    with telling({"--ledger": config.file}):
        return Ledger(config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """
    Args:
        most: connections at once.
        ledger: how to keep one; ``None`` = none is kept.
        otlp: base URL of an OpenTelemetry collector, or empty where the standard variables name it; ``None`` = nothing is sent to any.
        given, tls, banner, drain, watchdog: see ``Life``.
    """

    fleet: Fleet
    config: ServerConfig
    auth: Auth
    given: Inherited
    tls: Tls | None
    most: int
    banner: str
    drain: float
    watchdog: float
    ledger: LedgerConfig | None
    otlp: str | None = None

    def run(self) -> int:
        """Serve until told to stop; the exit code."""
        tracing = None if self.otlp is None else exporting.tracing(self.otlp, os.environ)
        ledger = opened(self.ledger)
        with contextlib.closing(ledger) if ledger else contextlib.nullcontext():

            def server(models: Registry) -> Server:
                app = create_app(models, self.config, ledger=ledger, auth=self.auth, tracing=tracing)
                return Server(app, self.given.listeners, self.most, self.tls)

            sys.setswitchinterval(_SWITCH_S)
            return uvloop.run(
                Life(
                    fleet=self.fleet,
                    server=server,
                    given=self.given,
                    tls=self.tls,
                    banner=self.banner,
                    drain=self.drain,
                    watchdog=self.watchdog,
                ).run()
            )
