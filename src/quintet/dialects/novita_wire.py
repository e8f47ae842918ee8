"""What Novita writes: OpenAI's shape with usage rules and errors of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from quintet.dialects.base import Fault, Headers, Identity
from quintet.dialects.wire import Logprobs, encode
from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finish, Finished, TokenText, Usage
from quintet.request import CompletionRequest

# Page, finish_reason: "Enum: `stop`, `length`". It has no word for a choice that broke off: the server answers with an error instead,
# and `length` (the text is incomplete) only keeps this table total.
_FINISH = {Finish.EOS: "stop", Finish.STOP: "stop", Finish.LENGTH: "length", Finish.ABORT: "length", Finish.ERROR: "length"}


class ChoiceBody(msgspec.Struct, gc=False):
    """Page, logprobs: "object, required"; null where no log-probabilities were asked for."""

    finish_reason: str | None
    index: int
    logprobs: Logprobs | None
    text: str


class UsageBody(msgspec.Struct, gc=False):
    """The three counts of the page."""

    completion_tokens: int
    prompt_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> UsageBody:
        return cls(usage.completion_tokens, usage.prompt_tokens, usage.completion_tokens + usage.prompt_tokens)


class Completion(msgspec.Struct, gc=False):
    """The JSON body and, in the same shape, every stream chunk; ``usage`` is null in all chunks but the last."""

    choices: list[ChoiceBody]
    created: int
    id: str
    model: str
    object: str
    usage: UsageBody | None = None


@dataclass(slots=True)
class _Folded:
    """A choice put together again from its chunks."""

    body: ChoiceBody
    texts: list[str]

    def add(self, piece: ChoiceBody) -> None:
        body = self.body
        self.texts.append(piece.text)
        body.finish_reason = piece.finish_reason or body.finish_reason
        if body.logprobs is not None and piece.logprobs is not None:
            body.logprobs.extend(piece.logprobs)


class NovitaRenderer:
    """See ``Renderer``."""

    def __init__(self, request: CompletionRequest, identity: Identity) -> None:
        self._identity = identity
        self._logprobs = request.logprobs is not None
        self._usage_alone = request.include_usage
        self._running = set(range(len(request.prompts) * request.n))
        self._starts: dict[int, int] = {}
        self._held: ChoiceBody | None = None

    def feed(self, event: Event) -> list[bytes]:
        if isinstance(event, Failed):
            # Bare, the SDK would take it for a chunk: in a stream it looks for `error`.
            return [encode({"error": error_body(Fault(500, event.message, "server_error", "engine_failed"))})]
        return [encode(chunk) for chunk in self._chunks(event)]

    def fold(self, events: Iterable[Event]) -> bytes:
        choices: dict[int, _Folded] = {}
        last = self._body([])
        for event in events:
            for last in self._chunks(event):
                for piece in last.choices:
                    if piece.index in choices:
                        choices[piece.index].add(piece)
                    else:
                        choices[piece.index] = _Folded(piece, [piece.text])
        for one in choices.values():
            one.body.text = "".join(one.texts)
        last.choices = [one.body for _, one in sorted(choices.items())]
        return encode(last)

    def headers(self, _events: Sequence[Event]) -> Headers:
        return ()

    def _chunks(self, event: Event) -> list[Completion]:
        match event:
            case ChoiceDelta(index, text, tokens):
                return [self._body([ChoiceBody(None, index, self._lists(index, tokens), text)])]
            case ChoiceDone(index, finish):
                self._running.discard(index)
                end = ChoiceBody(_FINISH[finish], index, self._lists(index, ()), "")
                if self._running or self._usage_alone:
                    return [self._body([end])]
                self._held = end
                return []
            case Finished():
                return [self._last(event)]
            case Failed(message):
                raise ValueError(f"a failed request has no body: {message}")

    def _last(self, event: Finished) -> Completion:
        # Two rules. Page, include_usage: "an additional chunk will be streamed before the data: [DONE] message", its "choices field will
        # always be an empty array". Page, usage: "For streaming responses, usage field is included in the very last response chunk
        # returned." Both hold if the last chunk is the additional one where it was asked for, and the finish chunk where it was not.
        last = self._body([] if self._held is None else [self._held])
        last.usage = UsageBody.of(event.usage)
        return last

    def _lists(self, index: int, tokens: tuple[TokenText, ...]) -> Logprobs | None:
        if not self._logprobs:
            return None
        # Page, text_offset: "Array of integers representing text offsets." Of the choice's text, as there is no `echo` here.
        start = self._starts.setdefault(index, tokens[0].offset) if tokens else 0
        made = Logprobs.of(tokens)
        made.text_offset = [offset - start for offset in made.text_offset]
        return made

    def _body(self, choices: list[ChoiceBody]) -> Completion:
        about = self._identity
        return Completion(choices, about.created, f"cmpl-{about.id}", about.model, "text_completion")


_REASONS = {400: "INVALID_REQUEST_BODY", 401: "FAILED_TO_AUTH"}
"""As recorded, by status; the others are our codes in capitals, which gives the recorded ``MODEL_NOT_FOUND`` too."""


def error_body(known: Fault) -> dict[str, object]:
    """``metadata`` is empty in what was recorded; here it names the field at fault."""
    about = {"param": known.param, "code": known.code} if known.param and known.status == 400 else {}
    reason = _REASONS.get(known.status, known.code.upper())
    return {"code": known.status, "reason": reason, "message": known.message, "metadata": about}
