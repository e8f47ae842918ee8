"""What a dialect is: pure functions from bytes to a canonical request, and from canonical events and errors to provider JSON.

A new provider is a folder with a table of ``Field``s and an object that satisfies ``Dialect``, and its row in ``catalog``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from quintet.errors import (
    BadRequest,
    BodyTooLarge,
    DeadlineExceeded,
    EngineFailed,
    Forbidden,
    HeadTooLarge,
    IdempotencyConflict,
    Loading,
    MethodNotAllowed,
    ModelNotFound,
    NotAuthorized,
    NotFound,
    OverLimit,
    Overloaded,
    QuintetError,
    RequestError,
    ServerError,
    SlowBody,
    TooManyRequests,
    Unsatisfiable,
    UnsupportedMedia,
    WrongHost,
)
from quintet.events import Blame, Event, Failed
from quintet.quota import Meter
from quintet.request import CompletionRequest, Sampling

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a response says about itself; given, so that rendering needs no clock and no randomness.

    Args:
        id: unique and printable; each dialect puts its own prefix before it.
        created: Unix time in seconds.
        model: the name to answer with.
        fingerprint: ``Capabilities.fingerprint``.
        host: the machine's name.
        deployment: the first name of the model that answers.
        concurrent: requests that need it now, this one among them.
    """

    id: str
    created: int
    model: str
    fingerprint: str
    host: str = ""
    deployment: str = ""
    concurrent: int = 1


@dataclass(frozen=True, slots=True)
class Parsed:
    """A request body, understood.

    Args:
        request: ``request.model`` is empty when the client named none and the dialect allows that.
        ignored: fields that neither the provider has nor an extension is; the server names them in a ``warning`` header.
        options: what only changes how this dialect writes the answer; nobody else looks inside, its ``renderer`` gets it back.
        unheeded: documented fields that have no effect here, or less than documented; also named in a ``warning`` header.
    """

    request: CompletionRequest
    ignored: tuple[str, ...] = ()
    options: object = None
    unheeded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """An entry of the models list.

    Args:
        name: what requests call it.
        created: Unix time in seconds from which it is served.
        context: most tokens of prompt plus completion; ``None`` while that is not known, as the model is not loaded.
        moderation: it judges whether texts are safe.
        images: it is known to see images.
    """

    name: str
    created: int
    context: int | None = None
    moderation: bool = False
    images: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """An error in the terms that every provider's error body is made of.

    Args:
        status: HTTP status.
        message: client-safe text.
        type: the class of error, in OpenAI's words.
        code: a stable machine-readable word.
        param: the field at fault, if one is.
        headers: to send along.
    """

    status: int
    message: str
    type: str
    code: str
    param: str | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as it goes out."""

    status: int
    headers: Headers
    body: bytes


class Renderer(Protocol):
    """Writes one response. JSON is a fold over the same chunks that a stream consists of."""

    def feed(self, event: Event) -> list[bytes]:
        """The stream chunks that an event makes, each one JSON text in ASCII (without SSE framing).

        ``Failed`` makes the provider's error object.
        """
        ...

    def add(self, event: Event) -> None:
        """Put an event into the JSON body, in place of ``feed``."""
        ...

    def body(self) -> Iterator[bytes]:
        """The JSON body, in parts, once all events were added, of which the last is ``Finished``; the same each time.

        Of a provider's dialect: one for each choice, by its index, between a head and a tail.
        """
        ...

    def weight(self, event: Event, /) -> float:
        """What it takes to render an event that is no ``ChoiceDelta``, in entries of log-probabilities: what was kept until then. What a
        delta takes is seen in it."""
        ...

    def late(self) -> None:
        """The headers of that body went out before it was known: whatever ``headers`` would say can only be in the body."""
        ...

    def headers(self, events: Sequence[Event], /) -> Headers:
        """Response headers that go with that JSON body, of its last events; a stream's are sent before there is anything to say."""
        ...


class Format(Protocol):
    """How completions are asked for and answered."""

    def parse(self, body: bytes, fresh_seed: int) -> Parsed:
        """Read a request body; every default is resolved.

        Args:
            fresh_seed: the seed to use when the client gives none, in [0, 2**64).

        Raises:
            BadRequest: and nothing else, whatever the bytes.
        """
        ...

    def renderer(self, request: CompletionRequest, identity: Identity, options: object = None, /) -> Renderer:
        """
        Args:
            options: ``Parsed.options`` of the same request.
        """
        ...


class Dialect(Format, Protocol):
    """One provider."""

    @property
    def name(self) -> str: ...

    def error(self, error: Exception) -> ErrorReply:
        """Any exception; those that are not ours give a fixed text with status 500."""
        ...

    def limits(self, meters: Sequence[Meter], over: bool, /) -> Headers:
        """Headers that tell where the caller's limits stand, as far as the provider has any for them.

        Args:
            over: this answer says that one was exceeded.
        """
        ...

    def models(self, served: Sequence[ServedModel]) -> bytes:
        """The body of the models list."""
        ...

    def model(self, served: ServedModel) -> bytes:
        """The body of one model."""
        ...


GREEDY_BELOW = 1e-5
"""A lower ``temperature`` means greedy. The core's own bound (csrc/sampling/sample.cpp), and vLLM's: such temperatures divide differences
that are within the rounding of the logits."""

GREEDY_NOTE = f"Below {GREEDY_BELOW:.5f}: greedy."

LEAST = 1e-6
"""A lower ``top_p`` means greedy. That is exact, unless ``typical_p`` takes the likeliest of V tokens away before: it has a probability
of at least 1/V, so with V < 10**6 the nucleus is that one token. And it stands for 0, and for what single precision has for 0, in
controls that must be above it."""

GREEDY_TOP_P_NOTE = f"Below {LEAST:.6f}: greedy, as `temperature` 0 is."


def or_off(value: float) -> float:
    """Of a control that 0 and less turn off: on, whatever single precision makes of it, or 0."""
    return max(value, LEAST) if value > 0 else 0.0


def sampling(temperature: float, top_p: float, seed: int | None, fresh_seed: int, *, mirostat: bool = False) -> Sampling:
    """Canonical sampling: ``top_p`` in (0, 1], which providers let clients set to 0, and numbers single precision can hold.

    Args:
        seed: as the client gave it, any integer, taken modulo 2**64.
        fresh_seed: where it gave none.
        mirostat: it stands for ``top_p``, which makes nothing greedy then; see ``switched_off``.
    """
    drawn = (fresh_seed if seed is None else seed) % 2**64
    if mirostat:
        top_p = max(top_p, LEAST)
    greedy = temperature < GREEDY_BELOW or top_p < LEAST
    return Sampling(0.0 if greedy else temperature, 1.0 if top_p < LEAST else top_p, drawn, seeded=seed is not None)


def switched_off(request: CompletionRequest) -> tuple[str, ...]:
    """Fields that are asked for beside Mirostat, which stands for them: they have no effect. They have these names in every dialect."""
    own = request.sampling
    if not own.mirostat_target or not own.temperature:
        return ()
    turned_on = {
        "top_n_sigma": own.top_n_sigma > 0,
        "top_k": own.top_k > 0,
        "typical_p": own.typical_p < 1,
        "top_p": own.top_p < 1,
        "min_p": max(own.min_p, own.min_probability) > 0,
        "xtc_probability": own.xtc_probability > 0,
    }
    return tuple(name for name, on in turned_on.items() if on)


def check_choices(request: CompletionRequest, most: int | None = None) -> None:
    """The rules over ``n``, ``best_of``, ``stream`` and the number of prompts.

    Args:
        most: prompts times ``n``, or times ``best_of`` if that is larger; ``None`` = the provider has no limit, only the server.

    Raises:
        BadRequest: one of them is broken.
    """
    prompts, n, best_of = len(request.prompts), request.n, request.best_of
    if best_of < n:
        raise BadRequest("best_of", "must be at least n", f"best_of {best_of} with n {n}")
    if most is not None and prompts * best_of > most:
        name = "best_of" if best_of > n else dict(request.spelled).get("n", "n")
        raise BadRequest(name, f"must give at most {most} choices (prompts times {name})", f"{prompts} times {best_of}")
    # The pages: "Results cannot be streamed": which are the best is known when all of them are complete.
    if request.stream and best_of > n:
        raise BadRequest("best_of", "must be n, or left out, with stream: true", f"best_of {best_of} with n {n}")


_CLIENT, _BUSY, _SERVER = "invalid_request_error", "service_unavailable_error", "server_error"

_FAULTS: tuple[tuple[type[Exception], int, str, str], ...] = (
    (BadRequest, 400, _CLIENT, ""),
    # Recorded, of OpenAI and Together: {"message": ..., "type": "invalid_request_error", "param": null, "code": "invalid_api_key"}.
    (NotAuthorized, 401, _CLIENT, "invalid_api_key"),
    (Forbidden, 403, "permission_error", "insufficient_permissions"),
    (ModelNotFound, 404, _CLIENT, "model_not_found"),
    (NotFound, 404, _CLIENT, "not_found"),
    (MethodNotAllowed, 405, _CLIENT, "method_not_allowed"),
    (WrongHost, 421, _CLIENT, "wrong_host"),
    (BodyTooLarge, 413, _CLIENT, "body_too_large"),
    (UnsupportedMedia, 415, _CLIENT, "unsupported_media_type"),
    (SlowBody, 408, _CLIENT, "request_timeout"),
    (HeadTooLarge, 431, _CLIENT, "head_too_large"),
    (IdempotencyConflict, 422, _CLIENT, "idempotency_conflict"),
    (TooManyRequests, 429, "rate_limit_error", "rate_limit_exceeded"),
    (Unsatisfiable, 400, _CLIENT, "unsatisfiable"),
    (RequestError, 400, _CLIENT, "invalid_request"),
    (Loading, 503, _BUSY, "model_loading"),
    (Overloaded, 503, _BUSY, "overloaded"),
    (DeadlineExceeded, 504, _SERVER, "deadline_exceeded"),
    (EngineFailed, 500, _SERVER, "engine_failed"),
    (ServerError, 500, _SERVER, "server_error"),
)
"""Kind of error -> status, type and code. The first match wins; some errors bring a status or a code of their own."""

_UNEXPECTED = Fault(500, "The server had an internal error.", _SERVER, "internal_error")


def fault(error: Exception) -> Fault:
    """Any exception in common terms. Text of exceptions that are not ours stays inside: it may hold anything."""
    for kind, usual_status, type_, usual_code in _FAULTS:
        if isinstance(error, kind):
            status = error.status if isinstance(error, HeadTooLarge | IdempotencyConflict) else usual_status
            code = error.code if isinstance(error, BadRequest) else usual_code
            param = (error.param or None) if isinstance(error, BadRequest | ModelNotFound) else None
            return Fault(status, str(error), type_, code, param, _headers(error))
    return _UNEXPECTED


def failed(event: Failed) -> QuintetError:
    """A request's failure after it was begun, as what is raised where there is still a status to be sent."""
    match event.blame:
        case Blame.REQUEST:
            return Unsatisfiable(event.message)
        case Blame.LOAD:
            return Overloaded(event.message)
        case Blame.TIME:
            return DeadlineExceeded(event.message)
    return EngineFailed(event.message)


def broken(event: Failed) -> Fault:
    """The same, for the last frame of a stream."""
    return fault(failed(event))


def _headers(error: Exception) -> Headers:
    if isinstance(error, NotAuthorized):
        return (("www-authenticate", "Bearer"),)
    if isinstance(error, MethodNotAllowed):
        return (("allow", error.allow),)
    if isinstance(error, DeadlineExceeded | IdempotencyConflict) or (isinstance(error, OverLimit) and error.permanent):
        return (("x-should-retry", "false"),)  # the SDKs would try twice more: on any other 5xx, each time as long, and on 409 and 429
    if isinstance(error, TooManyRequests | Overloaded):
        # Whole seconds for HTTP, and milliseconds, which the SDKs look at first; they ignore a zero.
        seconds = max(error.retry_after, 0.001)
        return (("retry-after", str(math.ceil(seconds))), ("retry-after-ms", str(math.ceil(seconds * 1000))))
    return ()
