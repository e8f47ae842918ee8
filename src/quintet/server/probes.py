"""What machines ask about the server itself: is it alive, can it take work, what is it, how much has it done."""

from __future__ import annotations

import json

from quintet import __version__
from quintet.backends.base import Backend, State
from quintet.server.call import Call, Endpoint
from quintet.server.metrics import MEDIA, Telemetry
from quintet.server.models import Models


class Probes:
    """Endpoints that never wait for the engine.

    Args:
        backend: whose health is told.
    """

    def __init__(self, backend: Backend, models: Models, telemetry: Telemetry) -> None:
        self._backend = backend
        self._models = models
        self._telemetry = telemetry

    def public(self) -> dict[str, Endpoint]:
        """Paths that need no key; they tell a state and nothing else."""
        return {"/health": self.health, "/readyz": self.health, "/livez": self.alive, "/ping": self.alive}

    async def health(self, call: Call) -> None:
        """200 only while the engine can take work and makes progress."""
        health = self._backend.health()
        if health.state is State.READY:
            await call.http.reply(200, b'{"status":"ok"}')
            return
        body: dict[str, str | float] = {"status": health.state.value}
        if health.state is State.LOADING:
            body["progress"] = round(health.progress, 2)
        await call.http.reply(503, json.dumps(body).encode(), [("retry-after", "1")])

    async def alive(self, call: Call) -> None:
        """200 unless only a new process can help; loading and a full queue are no reason for one."""
        dead = self._backend.health().state is State.DEAD
        await call.http.reply(503 if dead else 200, b'{"status":"dead"}' if dead else b'{"status":"alive"}')

    async def version(self, call: Call) -> None:
        """The version of this program."""
        await call.http.reply(200, json.dumps({"version": __version__}).encode())

    async def metrics(self, call: Call) -> None:
        """For Prometheus."""
        page = self._telemetry.scrape({self._models.public: self._backend.health()})
        await call.http.reply(200, page, media=MEDIA)

    async def warm(self, call: Call) -> None:
        """Cerebras' SDK asks for this when it is made, only to have an open connection; it waits for the answer."""
        await call.http.reply(200, b"{}")
