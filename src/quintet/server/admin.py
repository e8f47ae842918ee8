"""``POST /models/load`` and ``/models/unload``, and those of LoRA adapters in vLLM's form, for admins."""

from __future__ import annotations

import logging

from quintet.backends.base import Backend
from quintet.config import ServerConfig
from quintet.dialects.admin import BASE_MODEL, model_status, parse_adapter, parse_adapter_name, parse_model
from quintet.engines.adapters import Lora, LoraConfig
from quintet.engines.entry import Entry
from quintet.engines.registry import Registry
from quintet.errors import BadRequest, ModelError, ModelNotFound, Overloaded, shorten
from quintet.events import ChoiceDone, Failed, Finish
from quintet.request import CompletionRequest, Sampling, StopRules
from quintet.server.auth import Auth
from quintet.server.call import Call, Endpoint, Route
from quintet.server.models import Models
from quintet.server.source import Source
from quintet.service.service import Service

TRIAL = CompletionRequest(
    model="",
    prompts=((0,),),
    n=1,
    max_tokens=1,
    echo=False,
    logprobs=None,
    sampling=Sampling(temperature=0.0, top_p=1.0, seed=0),
    stop=StopRules(),
    stream=False,
    include_usage=False,
    user="",
)
"""What an adapter must be able to answer before anybody may name it."""

_log = logging.getLogger(__name__)


class Admin:
    """Endpoints.

    Args:
        auth: tells who is an admin.
    """

    def __init__(self, registry: Registry, models: Models, auth: Auth, config: ServerConfig, source: Source) -> None:
        self._registry = registry
        self._models = models
        self._auth = auth
        self._source = source
        self._max_body = config.max_body_bytes

    def routes(self) -> dict[str, Route]:
        """By path."""
        endpoints: dict[str, Endpoint] = {
            "/models/load": self.load,
            "/models/unload": self.unload,
            "/load_lora_adapter": self.load_adapter,
            "/unload_lora_adapter": self.unload_adapter,
        }
        return {path: Route(path, {"POST": endpoint}) for path, endpoint in endpoints.items()}

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

    async def load_adapter(self, call: Call) -> None:
        """Answered when the adapter has computed a token."""
        asked = parse_adapter(await self._body(call))
        entry = self._base(asked.base, call)
        loras = self._registry.loras(entry)
        digest = await self._registry.executor.run(call.caller.tenant, lambda: _digest(loras, asked.path))
        with entry.held(), self._registry.adding(entry, asked.name, asked.path, digest) as lora:
            await self._try(entry, await self._models.ready(call, entry), lora)
        _log.info("the LoRA adapter %s of %s is loaded from %s", asked.name, entry.name, asked.path)
        await call.http.reply(200, f"Success: LoRA adapter '{asked.name}' added successfully.".encode(), media="text/plain")

    async def unload_adapter(self, call: Call) -> None:
        """Answered when no request can name the adapter any more; those that run with it go on to their ends."""
        name = parse_adapter_name(await self._body(call))
        self._registry.remove(name)
        _log.info("the LoRA adapter %s is unloaded", name)
        await call.http.reply(200, f"Success: LoRA adapter '{name}' removed successfully.".encode(), media="text/plain")

    def _base(self, name: str, call: Call) -> Entry:
        if not name:
            return self._registry.first_with_loras()
        try:
            return self._models.find(name, call).entry
        except ModelNotFound as error:
            raise type(error)(str(error), BASE_MODEL.name) from None

    async def _try(self, entry: Entry, backend: Backend, lora: Lora) -> None:
        job = await Service(backend, entry.preparer, self._source.clock).prepare(TRIAL, adapter=lora.adapter)
        async for events in job.events():
            for event in events:
                if isinstance(event, Failed):
                    raise BadRequest(
                        "lora_path", f"cannot be loaded: {event.message.rstrip('.')} (the log has more)", shorten(lora.adapter.path)
                    )
                if isinstance(event, ChoiceDone) and event.finish is Finish.ABORT:  # nothing was computed with it
                    raise Overloaded("The LoRA adapter was not loaded: its trial was called off; try again later.")

    async def _asked(self, call: Call) -> Entry:
        name = parse_model(await self._body(call))
        return self._models.find(name, call).entry

    async def _body(self, call: Call) -> bytes:
        self._auth.require_admin(call.caller, call.http.headers.raw, call.http.address)
        return await call.http.body(self._max_body)


def _digest(loras: LoraConfig, path: str) -> str:
    try:
        return loras.check(path)
    except ModelError as error:
        raise BadRequest("lora_path", f"cannot be loaded: {error}".rstrip("."), shorten(path)) from None


async def _tell(call: Call, entry: Entry) -> None:
    await call.http.reply(200, model_status(entry.name, entry.status))
