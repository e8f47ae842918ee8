"""A line of a batch, computed as any request is: the same parsing, limits, ledger, errors and bytes; only nobody waits for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from quintet.batch import Batch, Tokens
from quintet.batches.lines import Answer, token_of
from quintet.batches.runner import AgainError, PendingLine
from quintet.dialects.base import Format, Headers, Identity, Parsed, Renderer
from quintet.dialects.catalog import PROVIDERS
from quintet.engines.registry import Registry
from quintet.errors import BadRequest, EngineFailed, ModelNotFound, NotAuthorized, OverLimit, Overloaded, QuintetError, TooManyRequests
from quintet.events import Event, Finished
from quintet.request import CompletionRequest
from quintet.server.asgi import Message, Send, arrived
from quintet.server.auth import Auth
from quintet.server.call import Call
from quintet.server.completions import CompletionApi, Completions
from quintet.server.http import Request
from quintet.server.source import Source

FOREVER_S = 30 * 86_400.0
"""Seconds of silence after which an answer to nobody would be kept alive."""

_KEY_S = 60.0
"""Seconds until a line whose key is not in force is tried again."""

_ENGINE_S = 1.0
"""Seconds until a line whose engine failed is tried again."""

_LEAST_S = 0.05
"""Fewest seconds until a line for which there is no room is tried again."""

_log = logging.getLogger(__name__)


class Lines:
    """Computes lines.

    Args:
        completions: what answers requests, with another source, without a deadline and without keeping anybody waiting.
    """

    def __init__(self, completions: Callable[[Source], Completions], auth: Auth, source: Source) -> None:
        self._completions = completions
        self._auth = auth
        self._source = source

    async def __call__(self, pending: PendingLine) -> Answer:
        """See ``Compute``. All that an answer is made of but the request is fixed: its seed, its id and its time."""
        batch, line = pending.batch, pending.line
        token = token_of(batch.id, line.number)
        provider = PROVIDERS[batch.dialect]
        source = replace(self._source, now=lambda: batch.created, token=lambda: token, seed=lambda: line.seed)
        parts: list[bytes] = []
        warnings: list[str] = []
        used = [Tokens(0, 0, 0)]

        async def send(message: Message) -> None:
            warnings.extend(value.decode("latin-1") for name, value in message.get("headers", ()) if name == b"warning")
            parts.append(message.get("body", b""))

        http = _request(pending, f"req-{token}", send)
        try:
            caller = replace(self._auth.of_owner(batch.owner), background=True)
            call = Call(http, provider, None, tail="", arrived=self._source.clock(), caller=caller)
            await self._completions(source).answer(call, CompletionApi(provider.title, _ForBatches(provider.dialect, used.append)))
        except Exception as error:
            if not isinstance(error, QuintetError):
                _log.exception("line %d of %s broke", line.number, batch.id)
            reply = provider.dialect.error(error)
            answer = Answer(reply.status, reply.body)
            if (again := _again(error, answer)) is not None:
                raise again from None
            return answer
        return Answer(http.status, b"".join(parts), used[-1], tuple(warnings))


def engine_of(registry: Registry, batch: Batch) -> str:
    """The model whose engine computes a batch's lines; empty = none does, and they are refused, or nobody can tell before they are read."""
    try:
        return registry.find(batch.model, PROVIDERS[batch.dialect].forms).entry.name
    except ModelNotFound:
        return ""


def _again(error: Exception, answer: Answer) -> AgainError | None:
    """What is neither the line's fault nor anybody's decision is tried again."""
    if isinstance(error, NotAuthorized):
        return AgainError(_KEY_S)  # the key may come back; else the batch expires
    if isinstance(error, OverLimit) and error.permanent:
        return None
    if isinstance(error, TooManyRequests | Overloaded):
        return AgainError(max(error.retry_after, _LEAST_S))
    return AgainError(_ENGINE_S, answer) if isinstance(error, EngineFailed) else None


def _request(pending: PendingLine, request_id: str, send: Send) -> Request:
    """As if somebody had sent it who never leaves."""
    scope = {"method": "POST", "path": pending.batch.asked.endpoint, "headers": [(b"content-type", b"application/json")]}
    return Request(scope, arrived(pending.body), send, request_id)


@dataclass(frozen=True, slots=True)
class _ForBatches:
    """A dialect's completions, but for what depends on what else runs.

    Args:
        used: is told of the tokens that an answer took; to look for them in it would take as long as it is large.
    """

    format: Format
    used: Callable[[Tokens], None]

    def parse(self, body: bytes, fresh_seed: int) -> Parsed:
        parsed = self.format.parse(body, fresh_seed)
        if parsed.request.stream:
            raise BadRequest("stream", "must be false, or left out, in a batch", "true")
        return parsed

    def renderer(self, request: CompletionRequest, identity: Identity, options: object = None, /) -> Renderer:
        # Nobody else's requests are told of, nor the lines beside it: how many there are is another number when it is computed again.
        return _Renderer(self.format.renderer(request, replace(identity, concurrent=1), options), self.used)


class _Renderer:
    """Tells of no token that it came out of the cache: a line that is computed again must have the same bytes."""

    def __init__(self, inner: Renderer, used: Callable[[Tokens], None]) -> None:
        self._inner, self._used = inner, used

    def feed(self, event: Event) -> list[bytes]:
        return self._inner.feed(event)

    def add(self, event: Event) -> None:
        if isinstance(event, Finished):
            usage = event.usage
            self._used(Tokens(usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens))
            event = Finished(replace(usage, cached_tokens=0))
        self._inner.add(event)

    def body(self) -> Iterator[bytes]:
        return self._inner.body()

    def weight(self, event: Event, /) -> float:
        return self._inner.weight(event)

    def late(self) -> None:
        self._inner.late()

    def headers(self, events: Sequence[Event], /) -> Headers:
        return self._inner.headers(events)
