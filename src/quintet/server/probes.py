"""What machines ask about the server itself: is it alive, can it take work, what is it, how much has it done."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from quintet import __version__
from quintet.backends.base import Health, State
from quintet.engines.entry import Entry
from quintet.engines.registry import Registry
from quintet.keys.key import Scope
from quintet.server.auth import require_scope
from quintet.server.call import Call, Endpoint
from quintet.server.metrics import MEDIA, Telemetry


class Probes:
    """Endpoints that never wait for the engine.

    Args:
        registry: whose health is told.
    """

    def __init__(self, registry: Registry, telemetry: Telemetry) -> None:
        self._registry = registry
        self._telemetry = telemetry

    def public(self) -> dict[str, Endpoint]:
        """Paths that need no key; they tell a state and nothing else."""
        ready = dict.fromkeys(("/health", "/v1/health", "/readyz"), self.health)  # llama-server's page: "`/v1/health` also works"
        return {**ready, "/livez": self.alive, "/ping": self.alive}

    async def health(self, call: Call) -> None:
        """200 only while every engine that there is can take work and makes progress, and the server does not drain.

        A model that waits to be loaded, or is loaded because somebody asked for it, is no fault.
        """
        await self._tell(call, [*self._registry.entries.values()], {})

    async def models(self, call: Call) -> None:
        """The same with the state of each model; ``?model=`` asks for one alone. Their names are not for every tenant."""
        require_scope(call.caller, Scope.METRICS)
        name = call.http.argument("model")
        entries = [self._registry.find(name, call.provider.forms).entry] if name else [*self._registry.entries.values()]
        await self._tell(call, entries, {"models": {entry.name: entry.status for entry in entries}})

    async def alive(self, call: Call) -> None:
        """200 unless only a new process can help; loading and a full queue are no reason for one."""
        dead = all(entry.health().state is State.DEAD for entry in self._registry.entries.values())
        await call.http.reply(503 if dead else 200, b'{"status":"dead"}' if dead else b'{"status":"alive"}')

    async def version(self, call: Call) -> None:
        """The version of this program."""
        await call.http.reply(200, json.dumps({"version": __version__}).encode())

    async def metrics(self, call: Call) -> None:
        """For Prometheus: everybody's counts, so not for every tenant."""
        require_scope(call.caller, Scope.METRICS)
        healths = {name: entry.health() for name, entry in self._registry.entries.items()}
        await call.http.reply(200, self._telemetry.scrape(healths), media=MEDIA)

    async def load(self, call: Call) -> None:
        """vLLM's ``GET /load``: how much there is to do. vLLM counts requests; here these are choices, that run or wait."""
        require_scope(call.caller, Scope.METRICS)
        healths = [entry.health() for entry in self._registry.entries.values()]
        await call.http.reply(200, json.dumps({"server_load": sum(health.running + health.waiting for health in healths)}).encode())

    async def warm(self, call: Call) -> None:
        """Cerebras' SDK asks for this when it is made, only to have an open connection; it waits for the answer."""
        await call.http.reply(200, b"{}")

    async def _tell(self, call: Call, entries: Sequence[Entry], more: Mapping[str, object]) -> None:
        ill = next((health for entry in entries if entry.loaded and (health := entry.health()).state is not State.READY), None)
        if ill is None and self._registry.draining:  # no engine is there that would say so
            ill = Health(State.DRAINING)
        if ill is None:
            await call.http.reply(200, json.dumps({"status": "ok", **more}, separators=(",", ":")).encode())
            return
        progress = {"progress": round(ill.progress, 2)} if ill.state is State.LOADING else {}
        later = [("retry-after", str(math.ceil(ill.retry_after)))]
        await call.http.reply(503, json.dumps({"status": ill.state.value, **progress, **more}).encode(), later)
