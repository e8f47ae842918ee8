"""The served model and its names."""

from __future__ import annotations

import re
from collections.abc import Callable

from quintet.backends.base import Backend, State
from quintet.dialects.base import ServedModel
from quintet.dialects.catalog import Provider
from quintet.dialects.wire import encode
from quintet.errors import BadRequest, ModelNotFound, shorten
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

    @property
    def public(self) -> str:
        """The name under which metrics tell of it, whatever name a request gave."""
        return self._names[0] if self._names else ""

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
        entries, write = [self._entry(name) for name in self._served()], _format(call)
        body = encode({"data": [write(entry) for entry in entries]}) if write else call.provider.dialect.models(entries)
        await call.http.reply(200, body)

    async def show(self, call: Call) -> None:
        """``GET /v1/models/{name}``; the name may hold slashes, which the SDKs send percent-encoded."""
        name = self._known(call.tail, call.provider)
        entry, write = self._entry(name), _format(call)
        await call.http.reply(200, encode(write(entry)) if write else call.provider.dialect.model(entry))

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


def _format(call: Call) -> Callable[[ServedModel], dict[str, object]] | None:
    """What writes an entry in the form that the request asks for; ``None`` = the dialect's own."""
    known, given = call.provider.formats, call.http.argument("format")
    if not known or given in ("", "default"):
        return None
    if given not in known:
        raise BadRequest("format", f"must be one of default, {', '.join(known)}", shorten(given))
    return known[given]
