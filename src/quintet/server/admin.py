"""``POST /models/load`` and ``/models/unload``, for admins."""

from __future__ import annotations

from quintet.config import ServerConfig
from quintet.dialects.admin import model_status, parse_model
from quintet.engines.entry import Entry
from quintet.engines.registry import Registry
from quintet.server.auth import Auth
from quintet.server.call import Call
from quintet.server.models import Models


class Admin:
    """Endpoints.

    Args:
        auth: tells who is an admin.
    """

    def __init__(self, registry: Registry, models: Models, auth: Auth, config: ServerConfig) -> None:
        self._registry = registry
        self._models = models
        self._auth = auth
        self._max_body = config.max_body_bytes

    async def load(self, call: Call) -> None:
        """Answered when the model is loaded; 503 with ``Retry-After`` if that takes long."""
        entry = await self._asked(call)
        with entry.held():
            await self._models.ready(call, entry)
        await _tell(call, entry)

    async def unload(self, call: Call) -> None:
        """Answered when what ran on it has ended and its memory is free."""
        entry = await self._asked(call)
        await self._registry.unload(entry)
        await _tell(call, entry)

    async def _asked(self, call: Call) -> Entry:
        self._auth.require_admin(call.caller, call.http.headers.raw, call.http.address)
        name = parse_model(await call.http.body(self._max_body))
        return self._models.find(name, call).entry


async def _tell(call: Call, entry: Entry) -> None:
    await call.http.reply(200, model_status(entry.name, entry.status))
