"""``/docs`` for people and ``/openapi.json`` for programs; public, the same for everybody, and without anything from elsewhere."""

from __future__ import annotations

from functools import cache

from quintet.dialects.catalog import PROVIDERS
from quintet.dialects.openapi import document, page
from quintet.dialects.wire import encode
from quintet.errors import BadRequest, shorten
from quintet.server.call import Call, Endpoint

_POLICY = ("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'")


def public() -> dict[str, Endpoint]:
    """Paths that need no key."""
    return {"/docs": _docs, "/openapi.json": _openapi}


async def _docs(call: Call) -> None:
    await call.http.reply(200, _page(), [_POLICY], media="text/html; charset=utf-8")


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
