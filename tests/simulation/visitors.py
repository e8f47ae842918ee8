"""Who asks over HTTP: requests in every provider's words, whole and as streams, by clients that are patient or not, read slowly or leave.

Each gets one answer, in the shape of its provider's page, whose text is what the sequences alone make of it; or an error in that provider's
words, which says when to come again where that is known; or a connection that breaks, if the server is killed. Some send a request again,
with the same ``Idempotency-Key``.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.simulation.asked import Asked, asking
from tests.simulation.client import PATIENCE, Crowd, alone_of
from tests.simulation.clock import Violation
from tests.simulation.faults import Fault
from tests.simulation.fronts import Fronts
from tests.simulation.served import MODEL, secret

from quintet.dialects.catalog import PROVIDERS, Provider
from quintet.request import CompletionRequest
from quintet.server.asgi import ASGIApp, Message, Receive, Scope, Send

ERRORS = frozenset({400, 403, 404, 409, 422, 429, 500, 503, 504})
COME_AGAIN = frozenset({429, 503})


@dataclass(slots=True)
class Visit:
    """A request and what has come of it so far.

    Args:
        broken: nobody was there, or is any more.
    """

    status: int = 0
    broken: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False

    def take(self, message: Message) -> None:
        """The server sends something."""
        _require(not self.complete, "http: sent after the end")
        if message["type"] == "http.response.start":
            _require(not self.status, "http: a second answer")
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            _require(self.status > 0, "http: a body before its status")
            self.body += message.get("body", b"")
            self.complete = not message.get("more_body", False)


@dataclass(slots=True, kw_only=True)
class Visitors(Crowd):
    """Those who ask one server.

    Args:
        whole: see ``Fronts.check``.
    """

    fronts: Fronts
    keyed: bool
    orders: int = 0
    whole: dict[str, tuple[int, int]] = field(default_factory=dict)

    async def ask(self, request: CompletionRequest) -> None:
        """See ``Crowd``."""
        provider = self.random.choice([*PROVIDERS.values()])
        body = _body(request, provider, stream=self.random.random() < 0.5)
        order = ""
        if self.random.random() < 0.1:
            self.orders += 1
            order = f"order-{self.orders}"
        tenant, _ = self.requests.tenant()
        given: list[Asked] = []
        asking.set(given)
        cut = b""
        for wait in PATIENCE:
            visit, left = await self._visit(provider, body, order, tenant)
            if visit.status not in COME_AGAIN and not (left and order) and not (visit.broken and (order or not visit.status)):
                break
            cut = b"" if visit.broken else visit.body if left else cut  # of a server that is dead nothing is replayed
            await asyncio.sleep(wait)
        if visit.headers.get("idempotent-replayed") and visit.complete:
            _require(visit.body.startswith(cut), "http: a replayed answer does not go on where it was cut off")
        if not left and not visit.broken:
            self._check(request, provider, body, visit, given)

    async def _visit(self, provider: Provider, body: bytes, order: str, tenant: str) -> tuple[Visit, bool]:
        """One conversation: what came of it, and whether the client left before its end."""
        visit, gone, unread = Visit(), asyncio.Event(), [body]
        front, life = self.fronts.current, self.fronts.life
        if front is None:
            visit.broken = True
            return visit, False
        pause = self.chance.seconds(Fault.READ_SLOWLY, 0.01, 5.0) if self.chance.happens(Fault.READ_SLOWLY) else 0.0

        async def receive() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if pause and not gone.is_set():
                await asyncio.sleep(pause)
            self.watch.moment()
            if visit.complete or not gone.is_set():
                visit.take(message)
                if visit.complete:
                    gone.set()

        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if self.keyed:
            headers.append((b"authorization", f"Bearer {secret(int(tenant.split()[-1]))}".encode()))
        if order:
            headers.append((b"idempotency-key", order.encode()))
        path = f"{provider.bases[0]}/completions"
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
        }
        if self.chance.happens(Fault.LEAVE):
            self.loop.call_later(self.chance.seconds(Fault.LEAVE, 0.001, 10.0), gone.set)
        context = life.context.copy()
        context.run(asking.set, asking.get())
        answering = self.loop.create_task(_answer(front.app, scope, receive, send), context=context)
        await asyncio.wait({answering, life.over}, return_when=asyncio.FIRST_COMPLETED)
        visit.broken = not answering.done() and not visit.complete
        error = answering.exception() if answering.done() else None
        if isinstance(error, Exception):  # what a server takes for the end of the connection
            _require(visit.status == 200, f"http: {error!r} before there was an answer")
        elif error is not None:
            raise error
        self.watch.trace("answered", visit.status, len(visit.body), visit.complete)
        self.watch.ends[f"http {visit.status or 499}"] += 1
        return visit, not visit.complete and not visit.broken and gone.is_set()

    def _check(self, request: CompletionRequest, provider: Provider, body: bytes, visit: Visit, given: Sequence[Asked]) -> None:
        """A client that stayed has one answer."""
        _require(visit.status > 0, "http: no answer")
        stream = json.loads(body)["stream"]
        if visit.status != 200:
            _require(visit.complete and visit.status in ERRORS, f"http: status {visit.status}, complete {visit.complete}")
            _shaped(provider.error, visit.body)
            again = {"retry-after", "x-should-retry"} & visit.headers.keys()
            _require(visit.status not in COME_AGAIN or bool(again), f"http: {visit.status} without a word when to come again")
            return
        chunks = [*_chunks(visit, stream)]
        if not visit.complete:  # it broke off after its status, and no client may take it for whole
            _require(b"[DONE]" not in visit.body, "http: an end, and no end")
            return
        answers = [_shaped(provider.chunk or provider.body if stream else provider.body, chunk) for chunk in chunks]
        texts: dict[int, str] = {}
        for choice in (choice for answer in answers for choice in answer["choices"]):
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        ends = [choice.get("finish_reason") for answer in answers for choice in answer["choices"] if choice.get("finish_reason")]
        _require(len(ends) == len(texts), f"http: {len(ends)} ends of {len(texts)} choices")
        for usage in (answer["usage"] for answer in answers[-1:] if answer.get("usage")):
            self.whole[answers[0]["id"]] = usage["prompt_tokens"], usage["completion_tokens"]
        if given:
            _check_texts(request, provider, texts, given[-1])


async def _answer(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


def _check_texts(request: CompletionRequest, provider: Provider, texts: dict[int, str], asked: Asked) -> None:
    _require(len(texts) == len(asked.expected), f"http: {len(texts)} choices of {len(asked.expected)}")
    for choice, text in texts.items():
        whole, stop, _ = alone_of(request, asked, choice)
        if stop is not None and provider.name == "novita":  # whose page has it in the text
            stop += len(request.stop.strings[0])
        _require(text == whole[:stop], f"http: choice {choice} is {text!r}, and alone {whole[:stop]!r}")


def _body(request: CompletionRequest, provider: Provider, *, stream: bool) -> bytes:
    """The same request in a provider's words, as far as these go."""
    prompts = [bytes(map(int, prompt)).decode("latin-1") for prompt in request.prompts]
    controls = request.sampling
    body: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": max(1, request.max_tokens or 1),
        "stream": stream,
        "temperature": controls.temperature,
    }
    one = provider.name == "together" or len(prompts) == 1
    body |= {"prompt": prompts[0] if one else prompts, "n": request.n, "seed": controls.seed, "top_p": controls.top_p}
    if request.stop.strings:
        body["stop"] = [*request.stop.strings]
    if stream and provider.name != "together":
        body["stream_options"] = {"include_usage": True}
    return json.dumps(body).encode()


def _chunks(visit: Visit, stream: bool) -> Iterator[bytes]:
    """The JSON texts of an answer."""
    if not stream:
        if visit.complete:
            yield visit.body
        return
    frames = [frame for frame in visit.body.split(b"\n\n") if frame and not frame.startswith(b":")]
    _require(all(frame.startswith(b"data: ") for frame in frames), "http: a frame that is none")
    _require(not visit.complete or frames[-1] == b"data: [DONE]", "http: a stream without its end")
    for frame in frames:
        if frame != b"data: [DONE]":
            yield frame.removeprefix(b"data: ")


@functools.cache
def _fields(shape: type[msgspec.Struct]) -> tuple[set[str], set[str]]:
    """Names of those that it must have, and of all that it may have."""
    about = msgspec.structs.fields(shape)
    return {one.encode_name for one in about if one.required}, {one.encode_name for one in about} | {"obfuscation"}


def _shaped(shape: type[msgspec.Struct], body: bytes) -> dict[str, Any]:
    """A JSON object with all that a shape requires, and nothing else."""
    found = json.loads(body)
    _require(isinstance(found, dict), f"http: no object, {body[:100]!r}")
    required, known = _fields(shape)
    _require(required <= found.keys() <= known, f"http: no {shape.__name__}, {body[:200]!r}")
    return dict(found)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)
