"""The served model and its names."""

from __future__ import annotations

import re

from quintet.backends.base import Backend, State
from quintet.dialects.base import ServedModel
from quintet.dialects.catalog import Provider
from quintet.errors import ModelNotFound, shorten
from quintet.server.call import Call


class Models:
    """Answers which model a name means, and the models routes.

    Args:
        names: accepted names, the public one first; empty: the model's own, known once it is loaded.
        created: Unix time in seconds from which it is served.
    """

    def __init__(self, backend: Backend, names: tuple[str, ...], created: int) -> None:
        self._backend = backend
        self._names = names
        self._created = created

    def resolve(self, name: str, provider: Provider) -> str:
        """The name to answer with: the one given, less the provider's qualifier if only so it is served; the public one if none was.

        Raises:
            ModelNotFound: not a name of the served model.
        """
        names = self._served()
        if not names:
            return name  # not loaded, or dead: the service refuses every request in its own words
        if not name:
            return names[0]
        return self._known(name, provider)

    async def list(self, call: Call) -> None:
        """``GET /v1/models``."""
        await call.exchange.reply(200, call.provider.dialect.models([self._entry(name) for name in self._served()]))

    async def show(self, call: Call) -> None:
        """``GET /v1/models/{name}``; the name may hold slashes, which the SDKs send percent-encoded."""
        name = self._known(call.resource.removeprefix("/models/"), call.provider)
        await call.exchange.reply(200, call.provider.dialect.model(self._entry(name)))

    def _known(self, name: str, provider: Provider) -> str:
        served = self._served()
        for spelling in (name, re.sub(rf"\A{provider.qualifier}", "", name)):
            if spelling in served:
                return spelling
        raise self._not_found(name)

    def _served(self) -> tuple[str, ...]:
        if self._names:
            return self._names
        return (self._backend.capabilities.model,) if self._loaded() else ()

    def _entry(self, name: str) -> ServedModel:
        return ServedModel(name, self._created, self._backend.capabilities.context if self._loaded() else None)

    def _loaded(self) -> bool:
        return self._backend.health().state in (State.READY, State.STALLED)

    def _not_found(self, name: str) -> ModelNotFound:
        return ModelNotFound(f"The model {shorten(name)} is not served here; served: {', '.join(self._served())}.")
