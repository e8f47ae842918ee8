"""What Fireworks writes: JSON, chunks, performance metrics, errors."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from quintet.dialects.base import Fault, Headers, Identity
from quintet.dialects.wire import FLOOR, encode, top_map
from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finish, Finished, Timing, TokenText
from quintet.request import CompletionRequest

# Page, finish_reason: "This will be "stop" if the model hit a natural stop point or a provided stop sequence, or "length" if the
# maximum number of tokens specified in the request was reached." The SDK also knows "error".
_FINISH = {Finish.EOS: "stop", Finish.STOP: "stop", Finish.LENGTH: "length", Finish.ABORT: "error", Finish.ERROR: "error"}


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
        echo, echo_last: what to show of the prompt; the events may have all of it, for its ids' sake.
        token_ids: show the ids of prompt and completion.
    """

    shape: Shape
    top: int
    echo: bool
    echo_last: int | None
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

    def add(self, token: TokenText) -> None:
        self.tokens.append(token.text)
        self.token_logprobs.append(_logprob(token))
        self.top_logprobs.append(top_map(token) or {})
        self.text_offset.append(token.offset)
        self.token_ids.append(token.token)

    def extend(self, other: Lists) -> None:
        self.tokens += other.tokens
        self.token_logprobs += other.token_logprobs
        self.top_logprobs += other.top_logprobs
        self.text_offset += other.text_offset
        self.token_ids += other.token_ids


class Alternative(msgspec.Struct, gc=False):
    """``bytes`` is left out where the text does not tell them: U+FFFD stands for a part of a character."""

    token: str
    logprob: float
    token_id: int
    bytes: list[int] | msgspec.UnsetType = msgspec.UNSET


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


class UsageBody(msgspec.Struct, gc=False):
    """The three counts of the page and no more: SDK 0.19 can be told to refuse what it does not know."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(msgspec.Struct, gc=False):
    """The JSON body and, in the same shape, every stream chunk."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChoiceBody]
    usage: UsageBody | None = None
    perf_metrics: dict[str, int | float] | msgspec.UnsetType = msgspec.UNSET
    error: dict[str, str | None] | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class _Seen:
    """What has been written of a choice."""

    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)


@dataclass(slots=True)
class _Folded:
    """A choice put together again from its chunks."""

    body: ChoiceBody
    texts: list[str]

    def add(self, piece: ChoiceBody) -> None:
        body = self.body
        self.texts.append(piece.text)
        body.finish_reason = piece.finish_reason or body.finish_reason
        body.raw_output = piece.raw_output or body.raw_output
        body.prompt_token_ids = piece.prompt_token_ids or body.prompt_token_ids
        if isinstance(body.token_ids, list) and isinstance(piece.token_ids, list):
            body.token_ids += piece.token_ids
        match body.logprobs, piece.logprobs:
            case Lists() as lists, Lists() as more:
                lists.extend(more)
            case Content() as content, Content() as more_content:
                content.content += more_content.content


class FireworksRenderer:
    """See ``Renderer``."""

    def __init__(self, request: CompletionRequest, identity: Identity, options: Options) -> None:
        self._request = request
        self._identity = identity
        self._options = options
        choices = range(len(request.prompts) * request.n)
        self._running = set(choices)
        self._unechoed = set(choices) if request.echo else set()
        self._seen = {index: _Seen() for index in choices} if options.raw_output else {}
        self._held: ChoiceBody | None = None

    def feed(self, event: Event) -> list[bytes]:
        if isinstance(event, Failed):
            return [encode(self._broken(event))]
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

    def headers(self, events: Sequence[Event]) -> Headers:
        """Page: "Performance metrics are always included in response headers"."""
        metrics = [pair for event in events if isinstance(event, Finished) for pair in _metrics(event).items()]
        return tuple((f"fireworks-{name}", str(value) if isinstance(value, int) else f"{value:.6f}") for name, value in metrics)

    def _chunks(self, event: Event) -> list[Completion]:
        match event:
            case ChoiceDelta():
                return [self._body([piece]) for piece in self._pieces(event)]
            case ChoiceDone(index, finish):
                self._running.discard(index)
                end = ChoiceBody("", index, self._logprobs(()), _FINISH[finish], token_ids=self._ids(()), raw_output=self._raw(index))
                if self._running:
                    return [self._body([end])]
                self._held = end
                return []
            case Finished():
                return [self._last(event)]
            case Failed(message):
                raise ValueError(f"a failed request has no body: {message}")

    def _pieces(self, delta: ChoiceDelta) -> list[ChoiceBody]:
        """The choice of a delta's chunk; none if the client did not ask to see any of it."""
        if delta.index in self._unechoed:
            self._unechoed.remove(delta.index)
            return self._prompt_pieces(delta)
        if seen := self._seen.get(delta.index):
            seen.texts.append(delta.text)
            seen.tokens += delta.tokens
        return [ChoiceBody(delta.text, delta.index, self._logprobs(delta.tokens), token_ids=self._ids(delta.tokens))]

    def _prompt_pieces(self, delta: ChoiceDelta) -> list[ChoiceBody]:
        options = self._options
        ids = [token.token for token in delta.tokens]
        if seen := self._seen.get(delta.index):
            seen.prompt_ids = ids
        text, tokens = delta.text, delta.tokens
        if not options.echo:
            text, tokens = "", ()
        elif options.echo_last is not None and self._request.echo_last is None:
            tokens = tokens[-options.echo_last :]
            text = "".join(token.text for token in tokens)
        if not (options.echo or options.token_ids):
            return []
        prompt_ids = ids if options.token_ids else msgspec.UNSET
        return [ChoiceBody(text, delta.index, self._logprobs(tokens), prompt_token_ids=prompt_ids, token_ids=self._ids(()))]

    def _last(self, event: Finished) -> Completion:
        """Page, usage: "included in the very last response chunk"; perf_metrics: "in the final chunk (when `finish_reason` is set)"."""
        prompt, completion = event.usage.prompt_tokens, event.usage.completion_tokens
        last = self._body([] if self._held is None else [self._held])
        last.usage = UsageBody(prompt, completion, prompt + completion)
        last.perf_metrics = _metrics(event) if self._options.perf_metrics else msgspec.UNSET
        return last

    def _broken(self, event: Failed) -> Completion:
        """One frame for two kinds of client: the SDK overlooks an error object, but sees the finish reason; others see the object."""
        if self._held is not None:
            self._running.add(self._held.index)
        broken = self._body([ChoiceBody("", index, None, _FINISH[Finish.ERROR]) for index in sorted(self._running)])
        broken.error = error_object(Fault(500, event.message, "server_error", "engine_failed"))
        return broken

    def _logprobs(self, tokens: Iterable[TokenText]) -> Lists | Content | None:
        if self._options.shape is Shape.NONE:
            return None
        if self._options.shape is Shape.CONTENT:
            return _content(tokens, self._options.top)
        lists = Lists()
        for token in tokens:
            lists.add(token)
        return lists

    def _ids(self, tokens: Iterable[TokenText]) -> list[int] | msgspec.UnsetType:
        return [token.token for token in tokens] if self._options.token_ids else msgspec.UNSET

    def _raw(self, index: int) -> RawOutput | msgspec.UnsetType:
        if (seen := self._seen.get(index)) is None:
            return msgspec.UNSET
        prompt = self._request.prompts[index // self._request.n]
        guide = self._request.guide
        return RawOutput(
            prompt_fragments=[prompt] if isinstance(prompt, str) else list(prompt),
            prompt_token_ids=seen.prompt_ids,
            completion="".join(seen.texts),
            completion_token_ids=[token.token for token in seen.tokens],
            completion_logprobs=None if self._options.shape is Shape.NONE else _content(seen.tokens, self._options.top),
            grammar=None if guide is None else guide.text,
        )

    def _body(self, choices: list[ChoiceBody]) -> Completion:
        about = self._identity
        return Completion(about.id, "text_completion", about.created, about.model, choices)


def error_object(known: Fault) -> dict[str, str | None]:
    return {"object": "error", "type": known.type, "code": known.code, "message": known.message, "param": known.param}


def _metrics(event: Finished) -> dict[str, int | float]:
    """The page's metrics, as far as the number is known; seconds to the microsecond."""
    timing = event.timing
    counts = {"prompt-tokens": event.usage.prompt_tokens, "cached-prompt-tokens": event.usage.cached_tokens}
    if timing == Timing():  # nobody took the time
        return {**counts}
    seconds = {
        "server-time-to-first-token": timing.total - timing.completion,
        "server-processing-time": timing.total,
        "prefill-queue-duration": timing.queue,
        "prefill-duration": timing.prompt,
        "generation-duration": timing.completion,
    }
    return {**counts, **{name: round(value, 6) for name, value in seconds.items()}}


def _logprob(token: TokenText) -> float:
    return 0.0 if token.logprob is None else max(token.logprob, FLOOR)


def _content(tokens: Iterable[TokenText], top: int) -> Content:
    """``top`` alternatives, likeliest first; the sampled token is among them only if it belongs there."""
    return Content([_entry(token, top) for token in tokens])


def _entry(token: TokenText, top: int) -> Entry:
    alternatives = [_alternative(token, *one) for one in token.top[:top]]
    return Entry(token.text, list(token.raw), _logprob(token), token.token, token.offset, alternatives)


def _alternative(sampled: TokenText, token: int, text: str, logprob: float) -> Alternative:
    if token == sampled.token:
        return Alternative(text, max(logprob, FLOOR), token, list(sampled.raw))
    return Alternative(text, max(logprob, FLOOR), token, msgspec.UNSET if "\ufffd" in text else list(text.encode()))
