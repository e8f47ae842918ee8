"""Lines of a batch without a server: no keys, no limits, no ledger, nobody to listen to."""

from __future__ import annotations

from quintet.batches.runner import Compute
from quintet.config import ServerConfig
from quintet.engines.registry import Registry
from quintet.keys.limits import Limiter
from quintet.server.accounts import Accounts
from quintet.server.auth import Auth
from quintet.server.completions import Completions
from quintet.server.cors import Cors
from quintet.server.gate import Gate
from quintet.server.lines import FOREVER_S, Lines
from quintet.server.metrics import Telemetry
from quintet.server.models import Models
from quintet.server.source import Source


def alone(registry: Registry) -> Compute:
    """Computes lines on the registry's engines; call it on the event loop that they are on."""
    source, config = Source(), ServerConfig()
    models = Models(registry, int(source.now()), Cors(()))
    gate = Gate(Limiter(parallel=0, clock=source.clock, now=source.now, book=None), config)
    telemetry, accounts = Telemetry(registry.entries, source.clock), Accounts(ledger=None)

    def completions(source: Source) -> Completions:
        return Completions(
            models=models,
            gate=gate,
            source=source,
            config=config,
            telemetry=telemetry,
            accounts=accounts,
            keep_alive=FOREVER_S,
            executor=registry.executor,
        )

    return Lines(completions, Auth.of(config, source.clock, source.now), source)
