"""``POST /v1/completions``."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from quintet.config import ServerConfig
from quintet.dialects.base import Format, Headers, Identity, Parsed, Renderer
from quintet.dialects.beyond import beyond
from quintet.engines.registry import Served
from quintet.errors import BadRequest, QuintetError
from quintet.events import ChoiceDone, Event, Failed, Finished
from quintet.executor import FairExecutor
from quintet.inputs.prepare import INLINE_CHARS, Preparer
from quintet.moderation.judge import Moderator
from quintet.request import CompletionRequest
from quintet.server.accounts import Accounts
from quintet.server.auth import Caller
from quintet.server.call import Call
from quintet.server.gate import Admission, Gate
from quintet.server.guard import Deadline, Guard, while_there
from quintet.server.metrics import Telemetry
from quintet.server.models import Models
from quintet.server.portions import INLINE_ENTRIES, portions, work_of
from quintet.server.source import Source
from quintet.server.sse import DONE, EVENTS, JSON, SlowAnswer, frames
from quintet.server.telemetry import Observer
from quintet.server.unpack import as_json
from quintet.service.job import Job
from quintet.service.service import Service, spelling_size

_log = logging.getLogger(__name__)

INLINE_BYTES = 16 * 1024
"""A larger body is parsed in a thread: what is sent by one client must not hold up the streams of all others, and so many bytes of empty
arrays take ten milliseconds."""

_BROKEN = "The server had an internal error."

T = TypeVar("T")


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


@dataclass(slots=True)
class _Collected:
    """What came of a request that is answered with JSON, beside what its renderer was given.

    Args:
        failure: why there is no answer.
        entries: what it takes to render them, as ``work_of`` counts it.
        last: the last events.
    """

    failure: QuintetError | None = None
    entries: float = 0
    last: Sequence[Event] = ()

    @property
    def long(self) -> bool:
        """The body is better written in parts."""
        return self.entries > INLINE_ENTRIES


class Completions:
    """Handles completions of every dialect.

    Args:
        keep_alive: seconds of silence after which something is sent.
        executor: for what takes long.
    """

    def __init__(
        self,
        *,
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
            admission.hold(parsed.request)
            served = self._models.find(parsed.request.model, call)
            safety = parsed.request.safety_model
            judging = None if safety is None else self._models.moderating(safety, call)
            async with contextlib.AsyncExitStack() as stack:
                for needed in (served, judging) if judging else (served,):
                    stack.enter_context(needed.held())
                    if call.caller.background:
                        await stack.enter_async_context(needed.entry.yielding())
                call.http.before_end.append(stack.enter_context(served.entry.answering()))
                await self._complete(call, api, parsed, served, judging, deadline, admission)

    async def _complete(
        self,
        call: Call,
        api: CompletionApi,
        parsed: Parsed,
        served: Served,
        judging: Served | None,
        deadline: Deadline,
        admission: Admission,
    ) -> None:
        async with deadline.kept():
            backend = await self._models.ready(call, served.entry)
            preparer = served.entry.preparer  # while the engine is there; it may be gone before the judge is
            moderator = await self._moderator(call, judging) if judging else None
            service = Service(backend, preparer, self._source.clock, self._config.max_logprobs, moderator)
            preparing = _prepared(call, api, parsed, preparer, served, service)
            # Judging a prompt takes its time, as does whatever waits for its turn: tokenising all but short ones, spelling out many
            # choices, and images however short.
            size = call.http.unpacked + spelling_size(parsed.request)
            slow = judging is not None or bool(parsed.request.images) or size > INLINE_CHARS
            request, job = await (while_there(call.http.receive, preparing) if slow else preparing)
        admission.reserve(job)
        identity = Identity(
            id=self._source.token(),
            created=int(self._source.now()),
            model=request.model,
            fingerprint=served.fingerprint(backend),
            host=self._source.host(),
            deployment=served.entry.name,
            concurrent=served.entry.unanswered,
        )
        asked = dataclasses.replace(request, max_tokens=job.max_tokens)
        renderer = beyond(api.format.renderer(asked, identity, parsed.options), asked)
        async with self._accounts.row(call, served.entry.name, request, identity, job) as account:
            job.require_room()  # others may have come while the row was written; nothing can between this and ``start``
            observer = Observer(self._telemetry.of(served.entry.name), request, call.arrived)
            call.observers.append(observer)
            try:
                async with Guard(call.http.receive, job, deadline) as guard:
                    account.begin(observer, guard)
                    admission.start(job)
                    call.http.before_end.append(partial(admission.leave, job))
                    run = _Run(call, job, renderer, observer, guard, tuple(warned(parsed.ignored, parsed.unheeded)), api.done)
                    with served.entry.released() if job.submitted else contextlib.nullcontext():
                        await (self._stream(run) if request.stream else self._json(run))
                    call.http.left = guard.gone and not call.http.ended
            finally:
                admission.settle(job)
                observer.ended(job.usage, job.longest)
                call.facts.update(model=served.entry.name, **observer.facts())

    async def _moderator(self, call: Call, judging: Served) -> Moderator:
        entry = judging.entry
        backend = await self._models.ready(call, entry)
        assert entry.model.moderation is not None
        return Moderator(judging.name, entry.model.moderation, backend, entry.preparer, self._telemetry.judged(entry.name))

    async def _parse(self, call: Call, api: CompletionApi) -> Parsed:
        http, provider, most = call.http, call.provider, self._config.max_body_bytes
        own = api.format is provider.dialect
        with http.reading():
            body = await http.body(most, packed=provider.packed, typed=provider.typed and own)

            def parse() -> Parsed:
                data = as_json(body, http.headers, most)
                http.unpacked = min(len(data), most)  # JSON of MessagePack may be six times its texts
                return api.format.parse(data, self._source.seed())

            small = len(body) <= INLINE_BYTES and "content-encoding" not in http.headers
            parsed = parse() if small else await while_there(http.receive, self._executor.run(call.caller.tenant, parse))
        if parsed.ignored and self._config.strict:
            rule = f"is not a field of {api.title}'s page, and this server is strict"
            raise BadRequest(parsed.ignored[0], rule, code="unknown_parameter")
        return provider.for_agent(parsed, http.headers.get("user-agent", ""))

    async def _stream(self, run: _Run) -> None:
        batches = run.job.events()
        # What fails before the first token gets a real status; there is nothing to send before it anyway.
        first = asyncio.ensure_future(anext(batches))
        await asyncio.wait({first}, timeout=self._keep_alive)
        if first.done():
            failure = run.guard.failure(first.result())
            if failure is not None or run.guard.gone:
                run.observer.saw(first.result())
            if run.guard.gone:
                return
            if failure is not None:
                raise failure
        async with SlowAnswer(run.call.http, EVENTS, run.headers, self._keep_alive) as answer:
            try:
                batch = await first
                run.observer.saw(batch)
                while not _ends(batch, run.guard) and not run.guard.gone:
                    await answer.write(await self._write_all_but_last(run, batch, answer))
                    batch = await anext(batches)
                    run.observer.saw(batch)
                failure = run.guard.failure(batch)
                events = batch if failure is None else _broken(batch, failure)
                last = await self._write_all_but_last(run, events, answer)
                complete = failure is None
            except Exception:
                _log.exception("request %s broke in its stream", run.call.http.request_id)
                last, complete = frames(run.renderer.feed(Failed(_BROKEN))), False
            if run.guard.gone:
                return
            if complete:
                await answer.end(last + run.done)
            else:
                await answer.write(last)  # and no end: the client gets to know it even if it does not know the frame

    async def _write_all_but_last(self, run: _Run, batch: Sequence[Event], answer: SlowAnswer) -> bytes:
        """The last piece of the body for an engine step, which is the only one if the step made nothing long."""
        data = b""
        for portion in portions(batch, run.renderer.weight):
            if data:
                await answer.write(data)
                await asyncio.sleep(0)
            if portion.long:
                data = await self._in_thread(run, partial(_render, run.renderer, portion.events))
            else:
                data = _render(run.renderer, portion.events)
        return data

    async def _in_thread(self, run: _Run, work: Callable[[], T]) -> T:
        """What takes long, when it is its tenant's turn."""
        return await self._executor.run(run.call.caller.tenant, work)

    async def _json(self, run: _Run) -> None:
        collecting = asyncio.create_task(self._collect(run))
        try:
            await asyncio.wait({collecting}, timeout=self._keep_alive)
            if not collecting.done():
                await self._slow_json(run, collecting)
            elif not run.guard.gone:
                collected = collecting.result()
                if collected.failure is not None:
                    raise collected.failure
                await self._reply(run, collected)
        finally:
            collecting.cancel()
            await asyncio.wait({collecting})

    async def _reply(self, run: _Run, collected: _Collected) -> None:
        http, headers = run.call.http, [*run.headers, *run.renderer.headers(collected.last)]
        if not collected.long:
            await http.reply(200, b"".join(run.renderer.body()), headers)
            return
        size = 0
        async for part in self._parts(run):  # made twice, so as not to be held at once
            size += len(part)
        if run.guard.gone:
            return
        await http.start(200, "application/json", [("content-length", str(size)), *headers])
        async for part in self._parts(run):
            await http.write(part)
        if not run.guard.gone:
            await http.write(b"", last=True)

    async def _parts(self, run: _Run) -> AsyncIterator[bytes]:
        """Those of a long JSON body, while there is somebody to send them to."""
        parts = run.renderer.body()
        while not run.guard.gone and (part := await self._in_thread(run, partial(next, parts, b""))):
            yield part

    async def _slow_json(self, run: _Run, collecting: asyncio.Task[_Collected]) -> None:
        """White space keeps the client waiting. The status is out by then: what fails now can only break the answer off."""
        async with SlowAnswer(run.call.http, JSON, run.headers, self._keep_alive) as answer:
            run.renderer.late()
            collected = await collecting
            if run.guard.gone:  # which ended the work, as a server's end does
                return
            if collected.failure is not None:
                _log.warning("request %s broke off: %s", run.call.http.request_id, collected.failure)
            elif collected.long:
                async for part in self._parts(run):
                    await answer.write(part)
                if not run.guard.gone:
                    await answer.end(b"")
            else:
                await answer.end(b"".join(run.renderer.body()))

    async def _collect(self, run: _Run) -> _Collected:
        collected = _Collected()
        async for batch in run.job.events():
            run.observer.saw(batch)
            collected.last = batch
            collected.failure = collected.failure or run.guard.failure(batch)
            if collected.failure is not None:
                continue  # up to the end, for the observer
            for portion in portions(batch, run.renderer.weight):
                collected.entries += sum(work_of(event, run.renderer.weight) for event in portion.events)
                if portion.long:
                    await self._in_thread(run, partial(_add, run.renderer, portion.events))
                else:
                    _add(run.renderer, portion.events)
                await asyncio.sleep(0)
        return collected


async def _prepared(
    call: Call, api: CompletionApi, parsed: Parsed, preparer: Preparer, served: Served, service: Service
) -> tuple[CompletionRequest, Job]:
    """The whole request, and its job."""
    caller, adapter = call.caller, served.lora.adapter if served.lora else None
    request = _resolved(await api.complete(parsed, preparer, caller.tenant), served.name, caller)
    return request, await service.prepare(request, caller.tenant, caller.weight, adapter, call.arrived)


def _resolved(request: CompletionRequest, model: str, caller: Caller) -> CompletionRequest:
    """With a model's name, and a salt that no two keys share: what one has cached must not show in another's timing.

    The pages, model: "The model used for the completion." It is answered by the name that was asked for, as the services do.
    """
    if caller.salt:
        request = dataclasses.replace(request, cache_salt=f"{caller.salt}/{request.cache_salt}")
    return request if request.model else dataclasses.replace(request, model=model)


def _ends(batch: list[Event], guard: Guard) -> bool:
    return isinstance(batch[-1], (Finished, Failed)) or guard.failure(batch) is not None


def _render(renderer: Renderer, events: Sequence[Event]) -> bytes:
    return frames([chunk for event in events for chunk in renderer.feed(event)])


def _add(renderer: Renderer, events: Sequence[Event]) -> None:
    for event in events:
        renderer.add(event)


def _broken(batch: Sequence[Event], failure: QuintetError) -> list[Event]:
    """A stream that broke ends with an error object and, so that nobody takes it for complete, without ``[DONE]``."""
    before = [event for event in batch if not isinstance(event, Failed | Finished | ChoiceDone)]
    failed = next((event for event in batch if isinstance(event, Failed)), Failed.by(failure))
    return [*before, failed]


def warned(ignored: Sequence[str], unheeded: Sequence[str] = ()) -> list[tuple[str, str]]:
    """RFC 7234 ``warning: 299``: fields that the provider does not document are ignored, but not in silence."""
    warnings = [("unknown fields ignored", ignored), ("not, or not fully, heeded here", unheeded)]
    return [("warning", f'299 - "{text}: {_listed(names)}"') for text, names in warnings if names]


def _listed(names: Sequence[str], most: int = 8) -> str:
    listed = ", ".join(name.replace("\\", "?").replace('"', "?") for name in names[:most])
    return f"{listed} and {len(names) - most} more" if len(names) > most else listed
