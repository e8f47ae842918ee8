"""What Cerebras writes: JSON, chunks, errors. Keys without a value are left out, as its recorded streams do, and never null."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from quintet.dialects.base import Fault, Identity, broken
from quintet.dialects.chunks import ChunkRenderer
from quintet.dialects.wire import STOP_OR_LENGTH, DetailedUsage, Logprobs
from quintet.events import ChoiceDelta, ChoiceDone, Failed, Finished, Timing, TokenText
from quintet.request import CompletionRequest

# Page, finish_reason: "This will be `stop` if the model hit a natural stop point or a provided stop sequence, `length` if the maximum
# number of tokens specified in the request was reached". It has no word for a choice that broke off: the server answers with an error
# instead.
_FINISH = STOP_OR_LENGTH


class Lists(msgspec.Struct, gc=False):
    """Parallel lists; ``top_logprobs`` is not there where no alternatives were asked for.

    ``None`` where nothing precedes the token: the first of an echoed prompt.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None] | UnsetType = UNSET

    def extend(self, other: Lists) -> None:
        """Append the entries of a later chunk."""
        self.text_offset += other.text_offset
        self.token_logprobs += other.token_logprobs
        self.tokens += other.tokens
        if isinstance(self.top_logprobs, list) and isinstance(other.top_logprobs, list):
            self.top_logprobs += other.top_logprobs


class ChoiceBody(msgspec.Struct, gc=False):
    """Page, return_raw_tokens: "Return raw tokens instead of text": a choice has either ``text`` or ``tokens``, the ids."""

    index: int
    finish_reason: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    tokens: list[int] | UnsetType = UNSET
    logprobs: Lists | UnsetType = UNSET

    def extend(self, later: ChoiceBody) -> None:
        if isinstance(self.tokens, list) and isinstance(later.tokens, list):
            self.tokens += later.tokens
        if isinstance(self.logprobs, Lists) and isinstance(later.logprobs, Lists):
            self.logprobs.extend(later.logprobs)


_LEAST_S = 1e-6
"""Of ``completion_time``: clients make tokens per second of it, and of a single token, from the first to the last, there was none."""


class TimeInfo(msgspec.Struct, gc=False):
    """Seconds, to the microsecond; ``created`` is Unix time."""

    queue_time: float
    prompt_time: float
    completion_time: float
    total_time: float
    created: int

    @classmethod
    def of(cls, timing: Timing, created: int) -> TimeInfo:
        queue, prompt, completion, total = (round(one, 6) for one in (timing.queue, timing.prompt, timing.completion, timing.total))
        return cls(queue, prompt, max(completion, _LEAST_S), total, created)


class Completion(msgspec.Struct, gc=False):
    """The JSON body and, in the same shape, every stream chunk."""

    id: str
    choices: list[ChoiceBody]
    created: int
    model: str
    system_fingerprint: str
    object: str
    usage: DetailedUsage | UnsetType = UNSET
    time_info: TimeInfo | UnsetType = UNSET


class CerebrasRenderer(ChunkRenderer[ChoiceBody, Completion]):
    """See ``Renderer``.

    Recorded: the chunk with the finish reason has `usage` and `time_info`, and no other has; with several choices, the last such.
    """

    def __init__(self, request: CompletionRequest, identity: Identity) -> None:
        super().__init__(request)
        self._identity = identity
        self._raw = request.token_ids
        self._logprobs, self._tops = request.logprobs is not None, bool(request.alternatives)
        self._usage = request.include_usage or not request.stream
        self._starts: dict[int, int] = {}

    def _pieces(self, delta: ChoiceDelta) -> list[ChoiceBody]:
        return [self._piece(delta.index, delta.text, delta.tokens)]

    def _end(self, done: ChoiceDone) -> ChoiceBody:
        end = self._piece(done.index, "", ())
        end.finish_reason = _FINISH[done.finish]
        return end

    def _finish(self, last: Completion, event: Finished) -> None:
        last.usage = DetailedUsage.of(event.usage) if self._usage else UNSET
        last.time_info = TimeInfo.of(event.timing, self._identity.created)

    def _broken(self, event: Failed) -> object:
        return error_body(broken(event))

    def _piece(self, index: int, text: str, tokens: tuple[TokenText, ...]) -> ChoiceBody:
        piece = ChoiceBody(index)
        if self._raw:
            # Ids never stand for more than the text that they are returned instead of; page, stop: it "will not contain the stop sequence".
            piece.tokens = [token.token for token in tokens if token.whole]
        else:
            piece.text = text
        if self._logprobs:
            piece.logprobs = self._lists(index, tokens)
        return piece

    def _lists(self, index: int, tokens: tuple[TokenText, ...]) -> Lists:
        # Page, text_offset: "Number of characters since the prompt.", and its example starts at 0. An echoed prompt is part of the text,
        # and there they count from its start: in either case an offset is a place in the choice's text.
        start = self._starts.setdefault(index, tokens[0].offset) if tokens else 0

        def write(some: Sequence[TokenText]) -> Lists:
            made = Logprobs.of(some, start)
            # Page, logprobs: "When set to 0, log probabilities are enabled but it does not return `top_logprobs`."
            return Lists(made.text_offset, made.token_logprobs, made.tokens, made.top_logprobs if self._tops else UNSET)

        return self._entries(tokens, write)

    def _body(self, choices: list[ChoiceBody]) -> Completion:
        about = self._identity
        return Completion(f"chatcmpl-{about.id}", choices, about.created, about.model, about.fingerprint, "text_completion")


# Recorded: {"message":"Model does not exist or you do not have access to it.","type":"not_found_error","param":"model","code":
# "model_not_found"} and {"message":"Requests per minute limit exceeded ...","type":"too_many_requests_error","param":"quota", ...}.
_TYPES = {404: "not_found_error", 429: "too_many_requests_error"}
# Recorded, of a wrong key: {"message":"Wrong API Key","type":"invalid_request_error","param":"api_key","code":"wrong_api_key"}.
_WRONG_KEY = "api_key", "wrong_api_key"
# Recorded, of whatever else is wrong with a request: {"message":"\"n\" > 1 is not currently supported","type":"invalid_request_error",
# "param":"n","code":"wrong_api_format"}; where no field is to be named, as in {"message":": Invalid JSON: invalid escape at line 1 column
# 26527", ...}, the "param" is "validation_error". What does not fit the context is "context_length_exceeded".
_WRONG_FORMAT = "validation_error", "wrong_api_format"
_NO_FORMAT = frozenset({"context_length_exceeded", "unsatisfiable"})
"""Codes of requests that are well-formed, and yet a 400."""


class ErrorObject(msgspec.Struct, gc=False):
    """``param`` is a string in every recorded error; Vercel's client refuses null."""

    message: str
    type: str
    param: str
    code: str


class ErrorBody(ErrorObject, gc=False):
    """Flat, as recorded and as other clients read it; and nested with the status, as the SDK types what it finds in a stream."""

    status_code: int
    error: ErrorObject


def error_body(known: Fault) -> ErrorBody:
    """See ``ErrorBody``."""
    param, code = _named(known)
    error = ErrorObject(message=known.message, type=_TYPES.get(known.status, known.type), param=param, code=code)
    return ErrorBody(**msgspec.structs.asdict(error), status_code=known.status, error=error)


def _named(known: Fault) -> tuple[str, str]:
    """``param`` and ``code``."""
    if known.status == 401:
        return _WRONG_KEY
    if known.status == 400 and known.code not in _NO_FORMAT:
        param, code = _WRONG_FORMAT
        return known.param or param, code
    return known.param or "", known.code
