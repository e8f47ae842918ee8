"""What Fireworks writes: JSON, chunks, errors."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from quintet.dialects.base import Fault, Headers, Identity, broken
from quintet.dialects.chunks import ChunkRenderer
from quintet.dialects.columns import CHARACTERS, ELSEWHERE, IDS, Apart, Column
from quintet.dialects.fireworks.metrics import Metrics, as_headers, metrics
from quintet.dialects.wire import FLOOR, Counts, encode, shown_logprob, top_map
from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finish, Finished, TokenText
from quintet.request import CompletionRequest, Guide, GuideKind, Prompt

# Page, finish_reason: "This will be "stop" if the model hit a natural stop point or a provided stop sequence, or "length" if the
# maximum number of tokens specified in the request was reached." The SDK also knows "error".
_FINISH = {
    Finish.EOS: "stop",
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.ABORT: "error",
    Finish.ERROR: "error",
    Finish.FILTER: "length",
}

_ANY_OBJECT = '{"type":"object"}'
"""The schema of ``json_object``, which is written without one."""


class Shape(enum.Enum):
    """How log-probabilities are written."""

    NONE = enum.auto()
    LISTS = enum.auto()  # parallel lists, for an integer
    CONTENT = enum.auto()  # a list of objects, for ``true``


@dataclass(frozen=True, slots=True)
class Options:
    """What a request says about how its answer is written.

    Args:
        top: alternatives per token.
        token_ids: show the ids of prompt and completion.
    """

    shape: Shape
    top: int
    token_ids: bool
    raw_output: bool
    perf_metrics: bool


class Lists(msgspec.Struct, gc=False):
    """The "legacy format": parallel lists. No nulls: one makes the SDKs take the lists for the other shape, and lose them.

    So a prompt's first token, which nothing precedes, has 0.0 and an empty map.
    """

    tokens: list[str] = []
    token_logprobs: list[float] = []
    top_logprobs: list[dict[str, float]] = []
    text_offset: list[int] = []
    token_ids: list[int] = []

    @classmethod
    def of(cls, tokens: Iterable[TokenText]) -> Lists:
        made = cls()
        for token in tokens:
            made.tokens.append(token.label)
            made.token_logprobs.append(shown_logprob(token) or 0.0)
            made.top_logprobs.append(top_map(token) or {})
            made.text_offset.append(token.offset)
            made.token_ids.append(token.token)
        return made

    def extend(self, other: Lists) -> None:
        self.tokens += other.tokens
        self.token_logprobs += other.token_logprobs
        self.top_logprobs += other.top_logprobs
        self.text_offset += other.text_offset
        self.token_ids += other.token_ids


class Alternative(msgspec.Struct, gc=False):
    token: str
    logprob: float
    token_id: int
    bytes: list[int]


class Entry(msgspec.Struct, gc=False):
    token: str
    bytes: list[int]
    logprob: float
    token_id: int
    text_offset: int
    top_logprobs: list[Alternative]


class Content(msgspec.Struct, gc=False):
    """The format of OpenAI's chat completions."""

    content: list[Entry] = []


class RawOutput(msgspec.Struct, gc=False):
    """SDK: "low-level interaction of what the model sees"."""

    prompt_fragments: list[str | int]
    prompt_token_ids: list[int]
    completion: str
    completion_token_ids: list[int]
    completion_logprobs: Content | None
    grammar: str | None


class ChoiceBody(msgspec.Struct, gc=False):
    text: str
    index: int
    logprobs: Lists | Content | None
    finish_reason: str | None = None
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    raw_output: RawOutput | msgspec.UnsetType = msgspec.UNSET

    def extend(self, later: ChoiceBody) -> None:
        self.raw_output = later.raw_output or self.raw_output
        self.prompt_token_ids = later.prompt_token_ids or self.prompt_token_ids
        if isinstance(self.token_ids, list) and isinstance(later.token_ids, list):
            self.token_ids += later.token_ids
        match self.logprobs, later.logprobs:
            case Lists() as lists, Lists() as more:
                lists.extend(more)
            case Content() as content, Content() as more_content:
                content.content += more_content.content


class ErrorObject(msgspec.Struct, gc=False):
    object: str
    type: str
    code: str
    message: str
    param: str | None


class ErrorBody(msgspec.Struct, gc=False):
    """The body of an error."""

    error: ErrorObject


class Completion(msgspec.Struct, gc=False):
    """The JSON body and, in the same shape, every stream chunk."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChoiceBody]
    usage: Counts | None = None  # no more than the page has: SDK 0.19 can be told to refuse what it does not know
    perf_metrics: Metrics | msgspec.UnsetType = msgspec.UNSET
    error: ErrorObject | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class _Seen:
    """What has been written of a choice, for its raw output at the end.

    Args:
        work: what it takes to render that, in entries of log-probabilities.
    """

    prompt_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=Column)
    content: list[Entry] = field(default_factory=Column)
    work: float = 0


class FireworksRenderer(ChunkRenderer[ChoiceBody, Completion]):
    """See ``Renderer``.

    Page, usage: "included in the very last response chunk"; perf_metrics: "in the final chunk (when `finish_reason` is set)".
    """

    def __init__(self, request: CompletionRequest, identity: Identity, options: Options) -> None:
        super().__init__(request)
        self._request = request
        self._identity = identity
        self._options = options
        self._top = request.alternatives or 0
        self._metrics = options.perf_metrics
        self._unbegun = set(self._running) if request.echo or request.prompt_ids else set()
        self._seen = {index: _Seen() for index in self._running} if options.raw_output else {}
        self._waiting = 0.0  # the work of the raw output that waits for the usage, with its choice's end

    def feed(self, event: Event) -> list[bytes]:
        if isinstance(event, ChoiceDone | Finished):
            return [made.joined(made.chunk) for made in self.apart(event)]
        return super().feed(event)

    def apart(self, event: Event) -> list[Apart]:
        """The chunks of ``feed``, and apart from them the raw output of a choice that ends."""
        if isinstance(event, ChoiceDone | Finished):
            return [*map(_apart, self._chunks(event))]
        return [*map(Apart, self.feed(event))]

    def weight(self, event: Event) -> float:
        match event:
            case ChoiceDone(index) if index in self._seen:
                return self._seen[index].work
            case Finished():
                return self._waiting
        return 0

    def headers(self, events: Sequence[Event]) -> Headers:
        """Page: "Performance metrics are always included in response headers"."""
        return tuple(pair for event in events if isinstance(event, Finished) for pair in as_headers(metrics(event, self._identity)))

    def late(self) -> None:
        """They are always included, so they go where there is still a place for them."""
        self._metrics = True

    def _pieces(self, delta: ChoiceDelta) -> list[ChoiceBody]:
        if delta.index in self._unbegun:
            self._unbegun.remove(delta.index)
            return self._prompt_pieces(delta)
        if seen := self._seen.get(delta.index):
            seen.texts.append(delta.text)
            seen.ids += [token.token for token in delta.tokens if token.whole]
            seen.work += len(delta.tokens) / IDS + len(delta.text) / CHARACTERS
            if self._options.shape is not Shape.NONE:
                seen.work += len(delta.tokens)
                seen.content += _content(delta.tokens, self._top).content
        return [ChoiceBody(delta.text, delta.index, self._logprobs(delta.tokens, self._top), token_ids=self._ids(delta.tokens))]

    def _end(self, done: ChoiceDone) -> ChoiceBody:
        seen = self._seen.pop(done.index, None)
        raw = msgspec.UNSET if seen is None else self._raw(done.index, seen)
        self._waiting = 0.0 if seen is None or self._running else seen.work
        return ChoiceBody("", done.index, self._logprobs(()), _FINISH[done.finish], token_ids=self._ids(()), raw_output=raw)

    def _prompt_pieces(self, delta: ChoiceDelta) -> list[ChoiceBody]:
        ids = list(delta.prompt or ())
        if seen := self._seen.get(delta.index):
            seen.prompt_ids = ids
            prompt = self._prompt(delta.index)
            seen.work += len(ids) / IDS + len(prompt) / (CHARACTERS if isinstance(prompt, str) else IDS)
        if not (self._request.echo or self._options.token_ids):
            return []
        prompt_ids = ids if self._options.token_ids else msgspec.UNSET
        logprobs = self._logprobs(delta.tokens, self._options.top)
        return [ChoiceBody(delta.text, delta.index, logprobs, prompt_token_ids=prompt_ids, token_ids=self._ids(()))]

    def _finish(self, last: Completion, event: Finished) -> None:
        last.usage = Counts.of(event.usage)
        last.perf_metrics = metrics(event, self._identity) if self._metrics else msgspec.UNSET

    def _broken(self, event: Failed) -> object:
        """One frame for two kinds of client: the SDK overlooks an error object, but sees the finish reason; others see the object."""
        if self._held is not None:
            self._running.add(self._held.index)
        last = self._body([ChoiceBody("", index, None, _FINISH[Finish.ERROR]) for index in sorted(self._running)])
        last.error = error_body(broken(event)).error
        return last

    def _logprobs(self, tokens: Sequence[TokenText], top: int = 0) -> Lists | Content | None:
        if self._options.shape is Shape.NONE:
            return None
        if self._options.shape is Shape.CONTENT:
            return self._entries(tokens, lambda some: _content(some, top))
        return self._entries(tokens, Lists.of)

    def _ids(self, tokens: Iterable[TokenText]) -> list[int] | msgspec.UnsetType:
        """Never for more than the text that is shown: without a token that a stop string cut in two."""
        return [token.token for token in tokens if token.whole] if self._options.token_ids else msgspec.UNSET

    def _prompt(self, index: int) -> Prompt:
        return self._request.prompts[index // self._request.n]

    def _raw(self, index: int, seen: _Seen) -> RawOutput:
        prompt = self._prompt(index)
        guide = self._request.guide
        completion: Any = msgspec.Raw(encode("".join(seen.texts)))  # by itself, as what is encoded around it is
        return RawOutput(
            prompt_fragments=[prompt] if isinstance(prompt, str) else list(prompt),
            prompt_token_ids=seen.prompt_ids,
            completion=completion,
            completion_token_ids=seen.ids,
            completion_logprobs=None if self._options.shape is Shape.NONE else Content(seen.content),
            grammar=None if guide is None else _grammar(guide),
        )

    def _body(self, choices: list[ChoiceBody]) -> Completion:
        about = self._identity
        return Completion(about.id, "text_completion", about.created, about.model, choices)


def _apart(chunk: Completion) -> Apart:
    for choice in chunk.choices:
        if isinstance(choice.raw_output, RawOutput):
            value, choice.raw_output = encode(choice.raw_output), ELSEWHERE
            return Apart(encode(chunk), b"raw_output", value)
    return Apart(encode(chunk))


def _grammar(guide: Guide) -> str:
    return _ANY_OBJECT if guide.kind is GuideKind.JSON_OBJECT else guide.text


def error_body(known: Fault) -> ErrorBody:
    """See ``ErrorBody``."""
    return ErrorBody(ErrorObject("error", known.type, known.code, known.message, known.param))


def _content(tokens: Iterable[TokenText], top: int) -> Content:
    """``top`` alternatives, likeliest first; the sampled token is among them only if it belongs there."""
    return Content([_entry(token, top) for token in tokens])


def _entry(token: TokenText, top: int) -> Entry:
    likeliest = zip(token.top[:top], token.top_raw[:top], strict=True)
    alternatives = [_alternative(token, id_, label, logprob, raw) for (id_, label, logprob), raw in likeliest]
    return Entry(token.label, _bytes(token), shown_logprob(token) or 0.0, token.token, token.offset, alternatives)


def _alternative(sampled: TokenText, id_: int, label: str, logprob: float, raw: bytes) -> Alternative:
    spelled = _bytes(sampled) if id_ == sampled.token else list(raw or label.encode())
    return Alternative(label, max(logprob, FLOOR), id_, spelled)


def _bytes(token: TokenText) -> list[int]:
    """Of a control token those of its text where it was written out in an echo, else of its name."""
    return list(token.raw or (token.text or token.name).encode())
