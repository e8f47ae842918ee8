"""``POST /models/load`` and ``/models/unload``, for who has the admin key."""

from __future__ import annotations

from quintet.config import ServerConfig
from quintet.dialects.admin import model_status, parse_model
from quintet.engines.entry import Entry
from quintet.engines.registry import Registry
from quintet.errors import NotFound
from quintet.server.auth import Keys
from quintet.server.call import Call
from quintet.server.models import Models


class Admin:
    """Endpoints.

    Args:
        keys: the admin's; ``None`` = there is none, and nobody may.
    """

    def __init__(self, registry: Registry, models: Models, keys: Keys | None, config: ServerConfig) -> None:
        self._registry = registry
        self._models = models
        self._keys = keys
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
        if self._keys is None:
            raise NotFound("Models are loaded and unloaded over HTTP only where the server has an admin key; start it with --admin-key.")
        self._keys.require(call.http.headers.raw, call.http.address)
        name = parse_model(await call.http.body(self._max_body))
        return self._models.find(name, call.provider).entry


async def _tell(call: Call, entry: Entry) -> None:
    await call.http.reply(200, model_status(entry.name, entry.status))
