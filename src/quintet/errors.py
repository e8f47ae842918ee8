"""Every error a client or a caller can meet.

::

    QuintetError
    ├── RequestError            the client's fault; nothing was started
    │   ├── BadRequest          a field breaks a rule (names field, rule, value)
    │   │   ├── PromptTooLong   prompt (+ max_tokens) does not fit the context
    │   │   ├── Unsupported     a field this server or model does not offer
    │   │   └── UnsafePrompt    judged unsafe by the request's moderation model
    │   ├── Unsatisfiable       what it asks for turned out, on the way, not to be possible
    │   ├── NotAuthorized       missing or wrong API key
    │   ├── Forbidden           the key may not do this
    │   ├── ModelNotFound       no such model here
    │   │   └── ModelNotAllowed none that the key may use
    │   ├── NotFound            no such route
    │   ├── WrongHost           meant for another host than this one
    │   ├── MethodNotAllowed    right route, wrong method
    │   ├── BodyTooLarge        over the body limit
    │   ├── UnsupportedMedia    wrong content type or encoding
    │   ├── HeadTooLarge        URL (414) or headers (431) over the limit
    │   ├── SlowBody            the body did not arrive in time (408)
    │   ├── IdempotencyConflict the key of another request (422), or of an answer that is gone (409)
    │   └── TooManyRequests     over this client's own limit (429)
    │       └── OverLimit       over its key's limit on requests or tokens
    ├── ServerError             ours
    │   ├── Overloaded          the queue is full, or draining (503 + Retry-After)
    │   ├── Loading             the model is not ready yet (503 + Retry-After)
    │   ├── DeadlineExceeded    over the server's time limit (504)
    │   └── EngineFailed        the engine died or rejected the work (500)
    └── ModelError              a model reference, file or download is unusable (one clear line for the CLI)

A dialect turns ``RequestError`` and ``ServerError`` into its provider's status and body.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quintet.quota import Meter


class QuintetError(Exception):
    """Base of all; ``str(error)`` is client-safe."""


class RequestError(QuintetError):
    """The client's fault."""


class BadRequest(RequestError):
    """A field breaks a rule.

    Args:
        param: the field as the client spelled it, e.g. ``stop`` or ``prompt[3]``; empty for the body as a whole.
        rule: the rule in words, e.g. ``must be at most 4 strings``.
        got: what was sent, shortened by ``shorten``; empty when there is nothing to show.
        code: a stable machine-readable word.
    """

    def __init__(self, param: str, rule: str, got: str = "", code: str = "invalid_value") -> None:
        self.param, self.rule, self.got, self.code = param, rule, got, code
        where = f"'{param}' " if param else ""
        super().__init__(f"{where}{rule}{f', got {got}' if got else ''}.")


class PromptTooLong(BadRequest):
    """The prompt, or the prompt and ``max_tokens`` together, exceed the context."""

    def __init__(self, param: str, rule: str, got: str = "") -> None:
        super().__init__(param, rule, got, code="context_length_exceeded")


class Unsupported(BadRequest):
    """A documented field that this server, or the model being served, does not offer."""

    def __init__(self, param: str, rule: str, got: str = "") -> None:
        super().__init__(param, rule, got, code="unsupported_parameter")


class UnsafePrompt(BadRequest):
    """The prompt was judged unsafe by the model that the request names for it.

    Args:
        judged: ``Flagged.words``.
    """

    def __init__(self, param: str, judged: str) -> None:
        super().__init__(param, f"was {judged}", code="content_policy_violation")


class Unsatisfiable(RequestError):
    """It turned out on the way that the request asks for what cannot be."""


class NotAuthorized(RequestError):
    """Missing or wrong API key."""


class Forbidden(RequestError):
    """The key is known, and may not do this."""


class ModelNotFound(RequestError):
    """The model named in the request is not served here.

    Args:
        param: the field that names it.
    """

    def __init__(self, message: str, param: str = "model") -> None:
        self.param = param
        super().__init__(message)


class ModelNotAllowed(ModelNotFound):
    """The key may not use a model of this name, whether there is one or not."""


class NotFound(RequestError):
    """No such route."""


class WrongHost(RequestError):
    """The request's ``Host`` is none that this server answers to."""


class MethodNotAllowed(RequestError):
    """The route exists, the method is wrong.

    Args:
        allow: the value of the ``Allow`` header.
    """

    def __init__(self, allow: str) -> None:
        self.allow = allow
        super().__init__(f"Method not allowed; use {allow}.")


class BodyTooLarge(RequestError):
    """The body exceeds the limit."""


class UnsupportedMedia(RequestError):
    """Content-Type or Content-Encoding that this route does not take."""


class HeadTooLarge(RequestError):
    """URL or headers exceed the limit.

    Args:
        status: 414 for the URL, 431 for the headers.
    """

    def __init__(self, message: str, status: int) -> None:
        self.status = status
        super().__init__(message)


class SlowBody(RequestError):
    """The body did not arrive in time."""


class IdempotencyConflict(RequestError):
    """An ``Idempotency-Key`` cannot be answered from what was computed for it, and must not be computed again.

    Args:
        status: 422 where it was used for another request, 409 where the answer is not here any more.
    """

    def __init__(self, message: str, status: int) -> None:
        self.status = status
        super().__init__(message)


class TooManyRequests(RequestError):
    """Over this client's own limit.

    Args:
        retry_after: seconds.
    """

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class OverLimit(TooManyRequests):
    """Over a limit of the key's on requests or tokens.

    Args:
        meter: the limit.
        requested: how much of it the request needs at most.
        wait: seconds until that much is left; ``None`` = however long one waits, it never will be.
    """

    def __init__(self, meter: Meter, requested: int, wait: float | None) -> None:
        self.meter, self.requested, self.wait = meter, requested, wait
        super().__init__(_over(meter, requested, wait), wait or 0.0)

    @property
    def permanent(self) -> bool:
        """Waiting does not help."""
        return self.wait is None


def _over(meter: Meter, requested: int, wait: float | None) -> str:
    # In OpenAI's words: "Rate limit reached for ... on requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in 20s."
    name = f"{meter.unit.value} per {meter.per}" if meter.per else f"{meter.unit.value} in all"
    used = max(0, meter.limit - meter.remaining)
    told = f"Rate limit reached on {name}: Limit {meter.limit}, Used {used}, Requested {requested}."
    if wait is not None:
        digits = ".0f" if wait >= 100 else ".3g"
        return f"{told} Please try again in {max(wait, 0.001):{digits}}s."
    return f"{told} That is more than the limit ever allows." if requested > meter.limit else f"{told} The key's budget does not suffice."


class ServerError(QuintetError):
    """Ours."""


class Overloaded(ServerError):
    """The queue is full or the server is draining.

    Args:
        retry_after: seconds.
    """

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


CLOSING = "The server is shutting down."
"""What ``Overloaded`` says to whoever comes then."""


class Loading(Overloaded):
    """The model is still loading."""


class DeadlineExceeded(ServerError):
    """The request took longer than the server allows; asking again would take as long."""


class EngineFailed(ServerError):
    """The engine died, or could not do the work."""


class ModelError(QuintetError):
    """A model reference, file or download is unusable."""


def counted(count: float, noun: str) -> str:
    """``1 token``, ``2 tokens``, ``1.5 seconds``: how many there are, in a message; of a ``float`` six digits at most."""
    shown = f"{count:g}" if isinstance(count, float) else str(count)
    return f"{shown} {noun}{'' if shown == '1' else 's'}"


def one_line(text: str) -> str:
    """A line for people with what would break it, such as a newline in a file's name, written as an escape."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def shorten(value: object, limit: int = 60) -> str:
    """``repr(value)``, but ``null``, ``true`` and ``false`` as they were written, in at most ``limit`` printable ASCII characters.

    Of a large value only as much is looked at.
    """
    return _cut(_written(_beginning(value, limit)), limit)


def printable(name: str, limit: int = 60) -> str:
    """A client's key as ``shorten`` shows it, but without quotes: safe in a message and a header."""
    return name if len(name) <= limit and name.isascii() and name.isprintable() else _cut(ascii(name[: limit + 1])[1:-1], limit)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _written(value: object) -> str:
    match value:
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case list():
            return f"[{', '.join(map(_written, value))}]"
        case dict():
            return f"{{{', '.join(f'{_written(key)}: {_written(item)}' for key, item in value.items())}}}"
        case _:
            return ascii(value)


def _beginning(value: object, limit: int) -> object:
    """What ``repr`` shows in its first ``limit`` characters, and a little more if there is more."""
    if isinstance(value, str | bytes):
        return value[: limit + 1]
    inside = limit - 1  # a bracket comes first: so a value that is nested a thousand deep is looked at no deeper than is shown
    if isinstance(value, list):
        return [_beginning(item, inside) for item in value[:limit]] if limit > 0 else [None]
    if isinstance(value, dict):
        return (
            {_beginning(key, inside): _beginning(item, inside) for key, item in islice(value.items(), limit)} if limit > 0 else {"": None}
        )
    return value
