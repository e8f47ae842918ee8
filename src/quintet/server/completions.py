"""``POST /v1/completions``."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from quintet.config import ServerConfig
from quintet.dialects.base import Format, Headers, Identity, Parsed, Renderer
from quintet.engines.registry import Served
from quintet.errors import BadRequest, QuintetError
from quintet.events import ChoiceDone, Event, Failed, Finished
from quintet.executor import FairExecutor
from quintet.inputs.prepare import Preparer
from quintet.request import CompletionRequest
from quintet.server.accounts import Accounts
from quintet.server.auth import Caller
from quintet.server.bodies import as_json
from quintet.server.call import Call
from quintet.server.gate import Admission, Gate
from quintet.server.guard import Deadline, Guard
from quintet.server.metrics import Telemetry
from quintet.server.models import Models
from quintet.server.sse import DONE, EVENTS, JSON, SlowAnswer, frames
from quintet.server.telemetry import Observer
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
    clock: Callable[[], float] = time.monotonic


async def _as_parsed(parsed: Parsed, _: Preparer, _tenant: str) -> CompletionRequest:
    return parsed.request


@dataclass(frozen=True, slots=True)
class CompletionApi:
    """An API of completions: how they are asked for and answered.

    Args:
        title: whose page documents its fields.
        complete: what is still to be done to a parsed request with its model's preparer, for a tenant.
        done: the last frame of a stream.
    """

    title: str
    format: Format
    complete: Callable[[Parsed, Preparer, str], Awaitable[CompletionRequest]] = _as_parsed
    done: bytes = DONE


@dataclass(frozen=True, slots=True)
class _Run:
    """A completion under way."""

    call: Call
    job: Job
    renderer: Renderer
    observer: Observer
    guard: Guard
    headers: Headers
    done: bytes


class Completions:
    """Handles completions of every dialect.

    Args:
        keep_alive: seconds of silence after which something is sent.
        executor: for what takes long.
    """

    def __init__(
        self,
        models: Models,
        gate: Gate,
        source: Source,
        config: ServerConfig,
        telemetry: Telemetry,
        accounts: Accounts,
        keep_alive: float,
        executor: FairExecutor,
    ) -> None:
        self._models = models
        self._gate = gate
        self._source = source
        self._config = config
        self._telemetry = telemetry
        self._accounts = accounts
        self._keep_alive = keep_alive
        self._executor = executor

    async def __call__(self, call: Call) -> None:
        await self.answer(call, CompletionApi(call.provider.title, call.provider.dialect))

    async def answer(self, call: Call, api: CompletionApi) -> None:
        """Answer as ``api`` has it, which need not be the dialect's own."""
        deadline = Deadline(self._config.timeout, self._source.clock() - call.arrived)
        with self._gate.admit(call) as admission:
            async with deadline.kept():
                parsed = await self._parse(call, api)
            admission.count(parsed.request)
            served = self._models.find(parsed.request.model, call)
            with served.entry.held():
                await self._complete(call, api, parsed, served, deadline, admission)

    async def _complete(
        self, call: Call, api: CompletionApi, parsed: Parsed, served: Served, deadline: Deadline, admission: Admission
    ) -> None:
        async with deadline.kept():
            backend = await self._models.ready(call, served.entry)
            preparer = served.entry.preparer
            request = _resolved(await api.complete(parsed, preparer, call.caller.id), served.name, call.caller)
            service = Service(backend, preparer, self._source.clock, self._config.max_logprobs)
            job = await service.prepare(request, call.caller.id, call.caller.key.priority)
        admission.reserve(job)
        identity = Identity(self._source.token(), int(self._source.now()), request.model, backend.capabilities.fingerprint)
        renderer = api.format.renderer(request, identity, parsed.options)
        async with self._accounts.row(call, served.entry.name, request, identity, job) as account:
            job.require_room()  # others may have come while the row was written; nothing can between this and ``start``
            observer = Observer(self._telemetry.of(served.entry.name), request, call.arrived)
            try:
                async with Guard(call.http.receive, job, deadline) as guard:
                    account.begin(observer, guard)
                    job.start()
                    run = _Run(call, job, renderer, observer, guard, tuple(_warnings(parsed)), api.done)
                    await (self._stream(run) if request.stream else self._json(run))
            finally:
                admission.settle(job)
                observer.ended(job.usage)
                call.facts.update(model=served.entry.name, **observer.facts())

    async def _parse(self, call: Call, api: CompletionApi) -> Parsed:
        http, provider, most = call.http, call.provider, self._config.max_body_bytes
        body = await http.body(most, provider.packed)

        def parse() -> Parsed:
            return api.format.parse(as_json(body, http.headers, most), self._source.seed())

        small = len(body) <= INLINE_BYTES and "content-encoding" not in http.headers
        parsed = parse() if small else await self._executor.run(call.caller.id, parse)
        if parsed.ignored and self._config.strict:
            rule = f"is not a field of {api.title}'s page, and this server is strict"
            raise BadRequest(parsed.ignored[0], rule, code="unknown_parameter")
        return parsed

    async def _stream(self, run: _Run) -> None:
        batches = run.job.events()
        # What fails before the first token gets a real status; there is nothing to send before it anyway.
        first = asyncio.ensure_future(anext(batches))
        await asyncio.wait({first}, timeout=self._keep_alive)
        if first.done() and not run.guard.gone:
            _raise(run.guard.failure(first.result()))
        async with SlowAnswer(run.call.http, EVENTS, run.headers, self._keep_alive) as answer:
            try:
                batch = await first
                run.observer.saw(batch)
                while not _ends(batch, run.guard) and not run.guard.gone:
                    await answer.write(_render(run.renderer, batch))
                    batch = await anext(batches)
                    run.observer.saw(batch)
                broken = run.guard.failure(batch)
                last = _render(run.renderer, batch) + run.done if broken is None else _broken(run.renderer, batch, broken)
                failure: Exception | None = broken
            except Exception as error:
                _log.exception("request %s broke in its stream", run.call.http.request_id)
                failure, last = error, frames(run.renderer.feed(Failed(_BROKEN)))
            if run.guard.gone:
                return
            if failure is None:
                await answer.end(last)
            else:
                await answer.write(last)  # and no end: the client gets to know it even if it does not know the frame

    async def _json(self, run: _Run) -> None:
        collecting = asyncio.create_task(_collect(run))
        try:
            await asyncio.wait({collecting}, timeout=self._keep_alive)
            if not collecting.done():
                await self._slow_json(run, collecting)
            elif not run.guard.gone:
                events = collecting.result()
                _raise(run.guard.failure(events))
                await run.call.http.reply(200, run.renderer.fold(events), [*run.headers, *run.renderer.headers(events)])
        finally:
            collecting.cancel()
            await asyncio.wait({collecting})

    async def _slow_json(self, run: _Run, collecting: asyncio.Task[list[Event]]) -> None:
        """White space keeps the client waiting. The status is out by then: what fails now can only break the answer off."""
        async with SlowAnswer(run.call.http, JSON, run.headers, self._keep_alive) as answer:
            events = await collecting
            failure = run.guard.failure(events)
            if failure is not None:
                _log.warning("request %s broke off: %s", run.call.http.request_id, failure)
            elif not run.guard.gone:
                await answer.end(run.renderer.fold(events))


def _resolved(request: CompletionRequest, model: str, caller: Caller) -> CompletionRequest:
    """With the model's name, and a salt that no two keys share: what one has cached must not show in another's timing."""
    salt = f"{caller.salt}/{request.cache_salt}" if caller.salt else request.cache_salt
    return dataclasses.replace(request, model=model, cache_salt=salt)


async def _collect(run: _Run) -> list[Event]:
    events: list[Event] = []
    async for batch in run.job.events():
        run.observer.saw(batch)
        events += batch
    return events


def _raise(failure: QuintetError | None) -> None:
    if failure is not None:
        raise failure


def _ends(batch: list[Event], guard: Guard) -> bool:
    return isinstance(batch[-1], Finished | Failed) or guard.failure(batch) is not None


def _render(renderer: Renderer, batch: Sequence[Event]) -> bytes:
    """One piece of the body for all that an engine step made."""
    return frames([chunk for event in batch for chunk in renderer.feed(event)])


def _broken(renderer: Renderer, batch: Sequence[Event], failure: QuintetError) -> bytes:
    """A stream that broke ends with an error object and, so that nobody takes it for complete, without ``[DONE]``."""
    whole = [event for event in batch if not isinstance(event, Failed | Finished | ChoiceDone)]
    why = next((event for event in batch if isinstance(event, Failed)), Failed(str(failure)))
    return _render(renderer, [*whole, why])


def _warnings(parsed: Parsed) -> list[tuple[str, str]]:
    """RFC 7234 ``warning: 299``: fields that the provider does not document are ignored, but not in silence."""
    said = [("unknown fields ignored", parsed.ignored), ("not, or not fully, heeded here", parsed.unheeded)]
    return [("warning", f'299 - "{what}: {_listed(names)}"') for what, names in said if names]


def _listed(names: Sequence[str], most: int = 8) -> str:
    listed = ", ".join(name.replace("\\", "?").replace('"', "?") for name in names[:most])
    return f"{listed} and {len(names) - most} more" if len(names) > most else listed
