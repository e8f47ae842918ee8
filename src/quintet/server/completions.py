"""``POST /v1/completions``."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.types import Receive

from quintet.backends.base import Backend
from quintet.dialects.base import Dialect, Identity, Parsed, Renderer
from quintet.errors import EngineFailed, Overloaded, ServerError
from quintet.events import ChoiceDone, Event, Failed, Finish, Finished
from quintet.server.exchange import Exchange
from quintet.server.models import Models
from quintet.server.sse import DONE, EventStream, frames
from quintet.service import Job, Service

_log = logging.getLogger(__name__)

INLINE_BYTES = 64 * 1024
"""A larger body is parsed in a thread: what is sent by one client must not hold up the streams of all others."""

_BROKEN = "The server had an internal error."


@dataclass(frozen=True, slots=True)
class Source:
    """Time and randomness; tests give their own."""

    now: Callable[[], float] = time.time
    token: Callable[[], str] = lambda: secrets.token_hex(16)
    seed: Callable[[], int] = lambda: secrets.randbits(64)


class Completions:
    """Handles one dialect's completions.

    Args:
        max_body: bytes.
        keep_alive: seconds of silence in a stream before a comment is sent.
    """

    def __init__(self, dialect: Dialect, backend: Backend, models: Models, source: Source, max_body: int, keep_alive: float) -> None:
        self._dialect = dialect
        self._backend = backend
        self._service = Service(backend)
        self._models = models
        self._source = source
        self._max_body = max_body
        self._keep_alive = keep_alive

    async def __call__(self, exchange: Exchange) -> None:
        parsed = await self._parse(await exchange.body(self._max_body))
        request = dataclasses.replace(parsed.request, model=self._models.resolve(parsed.request.model))
        job = await self._service.prepare(request)
        fingerprint = self._backend.capabilities.fingerprint
        identity = Identity(self._source.token(), int(self._source.now()), request.model, fingerprint)
        renderer = self._dialect.renderer(request, identity, parsed.options)
        headers = _warning(parsed.ignored)
        async with _cancelled_when_gone(exchange.receive, job) as gone:
            if request.stream:
                await self._stream(exchange, job, renderer, headers, gone)
            else:
                await _json(exchange, job, renderer, headers, gone)

    async def _parse(self, body: bytes) -> Parsed:
        if len(body) <= INLINE_BYTES:
            return self._dialect.parse(body, self._source.seed())
        return await asyncio.to_thread(self._dialect.parse, body, self._source.seed())

    async def _stream(
        self, exchange: Exchange, job: Job, renderer: Renderer, headers: Sequence[tuple[str, str]], gone: asyncio.Future[None]
    ) -> None:
        batches = job.events()
        # What fails before the first token gets a real status; there is nothing to send before it anyway.
        first = asyncio.ensure_future(anext(batches))
        await asyncio.wait({first}, timeout=self._keep_alive)
        if first.done() and not gone.done():
            _raise_failure(first.result())
        async with EventStream(exchange, headers, self._keep_alive) as stream:
            try:
                batch = await first
                while not _ends(batch) and not gone.done():
                    await stream.write(_render(renderer, batch))
                    batch = await anext(batches)
                last = _last(renderer, batch)
            except Exception:
                _log.exception("request %s broke in its stream", exchange.request_id)
                last = frames(renderer.feed(Failed(_BROKEN)))
            if not gone.done():
                await stream.end(last)


async def _json(
    exchange: Exchange, job: Job, renderer: Renderer, headers: Sequence[tuple[str, str]], gone: asyncio.Future[None]
) -> None:
    events = [event async for batch in job.events() for event in batch]
    if gone.done():
        return
    _raise_failure(events)
    await exchange.reply(200, renderer.fold(events), [*headers, *renderer.headers(events)])


@asynccontextmanager
async def _cancelled_when_gone(receive: Receive, job: Job) -> AsyncIterator[asyncio.Future[None]]:
    """Cancel the job as soon as the client closes the connection; gives a future that is done when it has.

    Leaving the block for any reason ends the job's work too. A job that is complete is left alone.
    """
    gone = asyncio.create_task(_disconnect(receive))
    gone.add_done_callback(lambda _: job.cancel())
    try:
        yield gone
    finally:
        job.cancel()
        gone.cancel()
        await asyncio.wait({gone})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _failure(events: Sequence[Event]) -> ServerError | None:
    """Why a request ended early though its client is still there: the engine failed, or the server shuts down."""
    for event in events:
        if isinstance(event, Failed):
            return EngineFailed(event.message)
        if isinstance(event, ChoiceDone) and event.finish in (Finish.ABORT, Finish.ERROR):
            return Overloaded("The server stopped before the request was complete.")
    return None


def _raise_failure(events: Sequence[Event]) -> None:
    if failure := _failure(events):
        raise failure


def _ends(batch: Sequence[Event]) -> bool:
    return isinstance(batch[-1], Finished | Failed) or _failure(batch) is not None


def _render(renderer: Renderer, batch: Sequence[Event]) -> bytes:
    """One piece of the body for all that an engine step made."""
    return frames([chunk for event in batch for chunk in renderer.feed(event)])


def _last(renderer: Renderer, batch: Sequence[Event]) -> bytes:
    """A stream that broke ends with an error object and, so that nobody takes it for complete, without ``[DONE]``."""
    failure = _failure(batch)
    if failure is None:
        return _render(renderer, batch) + DONE
    whole = [event for event in batch if not isinstance(event, Failed | Finished | ChoiceDone)]
    return _render(renderer, [*whole, Failed(str(failure))])


def _warning(ignored: Sequence[str], most: int = 8) -> list[tuple[str, str]]:
    """RFC 7234 ``warning: 299``: fields that the provider does not document are ignored, but not in silence."""
    if not ignored:
        return []
    names = ", ".join(name.replace("\\", "?").replace('"', "?") for name in ignored[:most])
    more = f" and {len(ignored) - most} more" if len(ignored) > most else ""
    return [("warning", f'299 - "unknown fields ignored: {names}{more}"')]
