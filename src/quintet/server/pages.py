"""``/docs`` for people and ``/openapi.json`` for programs; public, the same for everybody, and without anything from elsewhere.

The page's style and script are files beside the playground's, whose colours and letters it has.
"""

from __future__ import annotations

from functools import cache

from quintet.dialects.catalog import PROVIDERS
from quintet.dialects.openapi import document
from quintet.dialects.reference import page
from quintet.dialects.wire import encode
from quintet.errors import BadRequest, shorten
from quintet.server.call import Call, Endpoint
from quintet.server.static import ALWAYS


def public() -> dict[str, Endpoint]:
    """Paths that need no key."""
    return {"/docs": _docs, "/openapi.json": _openapi}


async def _docs(call: Call) -> None:
    await call.http.reply(200, _page(), ALWAYS, media="text/html; charset=utf-8")


async def _openapi(call: Call) -> None:
    name = call.http.argument("dialect") or call.provider.name
    if name not in PROVIDERS:
        raise BadRequest("dialect", f"must be one of {', '.join(PROVIDERS)}", shorten(name))
    await call.http.reply(200, _document(name))


@cache
def _page() -> bytes:
    return page().encode()


@cache
def _document(name: str) -> bytes:
    return encode(document(PROVIDERS[name]))
