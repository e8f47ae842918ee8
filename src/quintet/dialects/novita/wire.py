"""What Novita writes: OpenAI's shape with usage rules and errors of its own."""

from __future__ import annotations

import msgspec

from quintet.dialects.base import Fault, Identity, broken
from quintet.dialects.chunks import ChunkRenderer
from quintet.dialects.wire import STOP_OR_LENGTH, Counts, Logprobs
from quintet.events import ChoiceDelta, ChoiceDone, Failed, Finished, TokenText
from quintet.request import CompletionRequest

# Page, finish_reason: "Enum: `stop`, `length`". It has no word for a choice that broke off: the server answers with an error instead.
_FINISH = STOP_OR_LENGTH


class ChoiceBody(msgspec.Struct, gc=False):
    """Page, logprobs: "object, required"; null where no log-probabilities were asked for."""

    finish_reason: str | None
    index: int
    logprobs: Logprobs | None
    text: str

    def extend(self, later: ChoiceBody) -> None:
        if self.logprobs is not None and later.logprobs is not None:
            self.logprobs.extend(later.logprobs)


class Completion(msgspec.Struct, gc=False):
    """The JSON body and, in the same shape, every stream chunk; ``usage`` is null in all chunks but the last."""

    choices: list[ChoiceBody]
    created: int
    id: str
    model: str
    object: str
    usage: Counts | None = None


class NovitaRenderer(ChunkRenderer[ChoiceBody, Completion]):
    """See ``Renderer``.

    Two rules. Page, include_usage: "an additional chunk will be streamed before the data: [DONE] message", its "choices field will always
    be an empty array". Page, usage: "For streaming responses, usage field is included in the very last response chunk returned." Both
    hold if the last chunk is the additional one where it was asked for, and the finish chunk where it was not.
    """

    def __init__(self, request: CompletionRequest, identity: Identity) -> None:
        super().__init__(request, end_alone=request.include_usage)
        self._identity = identity
        self._logprobs = request.logprobs is not None
        self._starts: dict[int, int] = {}

    def _pieces(self, delta: ChoiceDelta) -> list[ChoiceBody]:
        return [ChoiceBody(None, delta.index, self._lists(delta.index, delta.tokens), delta.text)]

    def _end(self, done: ChoiceDone) -> ChoiceBody:
        return ChoiceBody(_FINISH[done.finish], done.index, self._lists(done.index, ()), "")

    def _finish(self, last: Completion, event: Finished) -> None:
        last.usage = Counts.of(event.usage)

    def _broken(self, event: Failed) -> object:
        # Bare, the SDK would take it for a chunk: in a stream it looks for `error`.
        return {"error": _error_object(broken(event))}

    def _lists(self, index: int, tokens: tuple[TokenText, ...]) -> Logprobs | None:
        if not self._logprobs:
            return None
        # Page, text_offset: "Array of integers representing text offsets." Of the choice's text, as there is no `echo` here.
        start = self._starts.setdefault(index, tokens[0].offset) if tokens else 0
        return self._entries(tokens, lambda some: Logprobs.of(some, start))

    def _body(self, choices: list[ChoiceBody]) -> Completion:
        about = self._identity
        return Completion(choices, about.created, f"cmpl-{about.id}", about.model, "text_completion")


_REASONS = {400: "INVALID_REQUEST_BODY", 401: "FAILED_TO_AUTH"}
"""As recorded, by status; the others are our codes in capitals, which gives the recorded ``MODEL_NOT_FOUND`` too."""


class ErrorObject(msgspec.Struct, gc=False):
    """``metadata`` is empty in what was recorded; here it names the field at fault."""

    code: int
    reason: str
    message: str
    metadata: dict[str, str]


class ErrorBody(ErrorObject, gc=False):
    """Flat, as recorded; and the same under ``error``.

    Its users have OpenAI's SDKs. That for Python reads ``error``, or else the body itself; that for JavaScript, and Vercel's, read
    ``error`` alone, and without it tell of "400 status code (no body)", whatever the message says.
    """

    error: ErrorObject


def error_body(known: Fault) -> ErrorBody:
    """See ``ErrorBody``."""
    told = _error_object(known)
    return ErrorBody(told.code, told.reason, told.message, told.metadata, told)


def _error_object(known: Fault) -> ErrorObject:
    about = {"param": known.param, "code": known.code} if known.param and known.status == 400 else {}
    reason = _REASONS.get(known.status, known.code.upper())
    return ErrorObject(known.status, reason, known.message, about)
