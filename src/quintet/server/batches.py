"""``/v1/batches``: files of requests that are computed when nothing else is to be done. A key sees its own."""

from __future__ import annotations

from functools import partial

from quintet.batch import Batch
from quintet.dialects.batches import batches_page
from quintet.dialects.catalog import PROVIDERS
from quintet.errors import BadRequest
from quintet.server.call import Call, Route
from quintet.server.completions import warned
from quintet.server.cors import Cors
from quintet.server.files import Files, shapes
from quintet.server.idempotency import Once
from quintet.server.kept import Kept
from quintet.server.large_answers import LargeAnswers
from quintet.server.source import Source

MOST_OPEN = 100
"""Batches of a key that have not ended."""

_MOST_BODY = 64 * 1024


def batch_routes(kept: Kept, source: Source, cors: Cors, once: Once, answers: LargeAnswers, *, strict: bool) -> dict[str, Route]:
    """Those of files and batches, for the dialects that have them."""
    dialects = frozenset(name for name, provider in PROVIDERS.items() if provider.batches)
    files, batches = Files(kept, source, cors, answers), Batches(kept, source, cors, answers, strict=strict)
    return {
        "/files": Route("/files", {"POST": files.create, "GET": files.list}, dialects),
        "/files/": Route("/files/{id}", {"GET": files.show, "DELETE": files.delete}, dialects),
        "/files/*/content": Route("/files/{id}/content", {"GET": files.content}, dialects),
        "/batches": Route("/batches", {"POST": once.of(batches.create), "GET": batches.list}, dialects),
        "/batches/": Route("/batches/{id}", {"GET": batches.show}, dialects),
        "/batches/*/cancel": Route("/batches/{id}/cancel", {"POST": batches.cancel}, dialects),
    }


class Batches:
    """Endpoints.

    Args:
        cors: which web sites' pages may cancel.
        answers: for what may be large.
        strict: refuse fields that are not the provider's.
    """

    def __init__(self, kept: Kept, source: Source, cors: Cors, answers: LargeAnswers, *, strict: bool) -> None:
        self._kept, self._source, self._cors, self._answers, self._strict = kept, source, cors, answers, strict

    async def create(self, call: Call) -> None:
        """``POST /v1/batches``."""
        await self._kept.folder()
        asked, ignored = shapes(call).create(await call.http.body(_MOST_BODY, typed=call.provider.typed))
        if ignored and self._strict:
            raise BadRequest(ignored[0], "is not a field of this page, and this server is strict", code="unknown_parameter")
        now = int(self._source.now())
        expires = now + asked.window_s if asked.window_s else None
        batch = Batch(
            id=f"batch_{self._source.token()}",
            owner=call.caller.owner,
            dialect=call.provider.name,
            asked=asked,
            created=now,
            expires=expires,
        )
        await self._kept.do(lambda store: store.add_batch(batch, MOST_OPEN))
        self._kept.wake()
        await call.http.reply(200, shapes(call).batch(batch), warned(ignored))

    async def list(self, call: Call) -> None:
        """``GET /v1/batches``."""
        page = batches_page(call.http.argument("after"), call.http.argument("limit"))
        query = partial(self._kept.do, lambda store: store.batches(call.caller.owner, page.after, page.limit))
        await self._answers.send_list(call, query, shapes(call).batches)

    async def show(self, call: Call) -> None:
        """``GET /v1/batches/{id}``."""
        batch = await self._kept.do(lambda store: store.batch(call.tail, call.caller.owner))
        await self._answers.send(call, shapes(call).batch(batch))

    async def cancel(self, call: Call) -> None:
        """``POST /v1/batches/{id}/cancel``."""
        self._cors.require_allowed(call.http)
        batch = await self._kept.do(lambda store: store.cancel(call.tail, call.caller.owner, self._source.now()))
        self._kept.wake()
        await call.http.reply(200, shapes(call).batch(batch))
