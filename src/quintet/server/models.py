"""The models: which one a request means, the wait until it is there, and the models routes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from quintet.backends.base import Backend, State
from quintet.dialects.base import ServedModel
from quintet.dialects.wire import encode
from quintet.engines.entry import Entry
from quintet.engines.names import matches
from quintet.engines.registry import Registry, Served
from quintet.errors import BadRequest, ModelNotAllowed, ModelNotFound, NotFound, shorten
from quintet.keys.key import Key
from quintet.server.call import Call
from quintet.server.cors import Cors
from quintet.server.guard import while_there

_THERE = (State.READY, State.STALLED, State.UNSOUND)
"""States in which an engine knows its capabilities."""

_OF_PROJECT = re.compile("projects/([^/]+)/models(?:/(.+))?", re.DOTALL)

SAFETY_MODEL = "safety_model"
"""The field that names a moderation model."""


class Models:
    """Finds models for callers, and the endpoints that tell of them.

    Args:
        created: Unix time in seconds from which they are served.
        cors: which web sites' pages may have one loaded.
    """

    def __init__(self, registry: Registry, created: int, cors: Cors) -> None:
        self._registry = registry
        self._created = created
        self._cors = cors

    def find(self, name: str, call: Call) -> Served:
        """What a request's model name means; hold the entry as long as its engine is needed. Without a name, the caller's first model.

        Raises:
            ModelNotFound: nothing.
            ModelNotAllowed: nothing that the caller may use.
        """
        forms = call.provider.forms
        stands_in = name in call.provider.stand_ins and self._registry.names.find(name, forms) is None
        wanted = "" if stands_in else name
        if not call.caller.key.models:
            return self._registry.find(wanted, forms)
        allowed = self._names(call)
        listed = ", ".join(allowed) or "none that is listed"
        refusal = f"The model {shorten(name)} does not exist, or this key may not use it; it may use: {listed}."
        if not name:  # and of those that it may use there is none to stand for it
            refusal = "The request names no model, and this key may use none that is listed."
        if not wanted and not allowed:
            raise ModelNotAllowed(refusal)
        try:
            served = self._registry.find(wanted or allowed[0], forms)
        except ModelNotFound:
            raise ModelNotFound(refusal) from None  # and nothing of what there is for others
        if not _allowed(call.caller.key, served.name, served.entry.name):
            raise ModelNotAllowed(refusal)
        return served

    def _names(self, call: Call) -> list[str]:
        """Those of the list that the caller may use."""
        return [name for name, model in self._registry.names.exact.items() if _allowed(call.caller.key, name, model)]

    async def ready(self, call: Call, entry: Entry) -> Backend:
        """The model's engine, after waiting until it is loaded if need be. The request's body has been read.

        Raises:
            ClientGoneError: the client left meanwhile.
            Forbidden: a web page of another site would have a model loaded by a mere GET.
            Loading, Overloaded, EngineFailed: see ``Registry.ready``.
        """
        background = call.caller.background
        if entry.loaded:
            return await self._registry.ready(entry, background=background)
        if call.http.method != "POST":  # whose body ``check_media`` has looked at
            self._cors.require_allowed(call.http)
        return await while_there(call.http.receive, self._registry.ready(entry, background=background))

    def moderating(self, name: str, call: Call) -> Served:
        """The model that a request's ``safety_model`` names, found as its model is.

        Raises:
            ModelNotFound, ModelNotAllowed: as ``find``; also a model that judges nothing.
        """
        kind = ModelNotFound
        try:
            served = self.find(name, call) if name else None
        except ModelNotFound as error:
            served, kind = None, type(error)
        if served is None or served.entry.model.moderation is None or served.lora is not None:
            # Together's page: "Choose from the available moderation models"; its page of error codes has 404 for a name that is none.
            judges = [judge for judge in self._names(call) if self._registry.find(judge).entry.model.moderation is not None]
            listed = ", ".join(judges) or "none"
            refusal = f"The model {shorten(name)} is not served for moderation (--moderation) here; served for it: {listed}."
            raise kind(refusal, SAFETY_MODEL)
        return served

    async def list(self, call: Call) -> None:
        """``GET /v1/models``."""
        write = _format(call)
        if write is None:
            body = call.provider.dialect.models(self._entries(call))
        else:  # these require a context, which is not known of every model that is not loaded, and a list loads none
            body = encode({"data": [write(entry) for entry in self._entries(call, *_THERE, State.LOADING)]})
        await call.http.reply(200, body)

    async def show(self, call: Call) -> None:
        """``GET /v1/models/{name}``; the name may hold slashes, which the SDKs send percent-encoded."""
        entry, write = self.find(call.tail, call).entry, _format(call)
        if write is None:
            body = call.provider.dialect.model(self._entry(call.tail, entry))
        else:
            with entry.held():
                if entry.model.context is None:
                    await self.ready(call, entry)
                body = encode(write(self._entry(call.tail, entry)))
        await call.http.reply(200, body)

    async def of_project(self, call: Call) -> None:
        """``GET /v2/projects/{project}/models``, and beneath it one by its name: every project has all. Together's SDK asks so.

        Raises:
            NotFound: another path.
        """
        match, write = _OF_PROJECT.fullmatch(call.tail), call.provider.of_project
        if match is None or write is None:
            raise NotFound("There is nothing at this path; models are at GET /v2/projects/{project}/models.")
        project, name = match.groups()
        if name is None:  # SDK, SyncCursorPagination: no next_cursor, no further page
            body: dict[str, object] = {"data": [write(entry, project) for entry in self._entries(call)]}
        else:
            body = write(self._entry(name, self.find(name, call).entry), project)
        await call.http.reply(200, encode(body))

    def _entries(self, call: Call, *states: State) -> Sequence[ServedModel]:
        """Those of the list; given states, of models whose context is known only once they are loaded, those in one of these."""
        listed: list[ServedModel] = []
        for name in self._names(call):
            entry = self._registry.find(name).entry
            if not states or entry.model.context or entry.health().state in states:
                listed.append(self._entry(name, entry))
        return listed

    def _entry(self, name: str, entry: Entry) -> ServedModel:
        there = entry.backend is not None and entry.health().state in _THERE
        moderation = entry.model.moderation is not None
        if not there or entry.backend is None:
            return ServedModel(name, self._created, entry.model.context, moderation)
        about = entry.backend.capabilities
        return ServedModel(name, self._created, about.context, moderation, about.images is not None)


def _allowed(key: Key, *names: str) -> bool:
    """A key may use a model, of which these are names."""
    return not key.models or any(matches(pattern, name) for pattern in key.models for name in names)


def _format(call: Call) -> Callable[[ServedModel], dict[str, object]] | None:
    """What writes an entry in the form that the request asks for; ``None`` = the dialect's own."""
    known, given = call.provider.formats, call.http.argument("format")
    if not known or given in ("", "default"):
        return None
    if given not in known:
        raise BadRequest("format", f"must be one of default, {', '.join(known)}", shorten(given))
    return known[given]
