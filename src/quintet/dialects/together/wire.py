"""What Together writes: JSON, chunks of one token each, errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from quintet.dialects.base import Headers, Identity, broken
from quintet.dialects.columns import ELSEWHERE, STRETCH, Apart, filled, growing
from quintet.dialects.wire import Counts, encode, error_body, shown_logprob, top_map
from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finish, Finished, TokenText
from quintet.request import CompletionRequest

# Page, FinishReason: "stop, eos, length, tool_calls, function_call": the model's own end has a word of its own. There is none for a
# choice that broke off: the server answers with an error instead, and `length` (the text is incomplete) only keeps this table total.
# Nor is there one for a choice that moderation ended: it stopped, and ``Moderation`` and ``Warned`` say why.
_FINISH = {
    Finish.EOS: "eos",
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.ABORT: "length",
    Finish.ERROR: "length",
    Finish.FILTER: "stop",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What a request says about how its answer is written.

    Args:
        logprobs: as the client asked; the events of a stream always have them.
        listed: ``top_logprobs`` is a list, and ``logprobs`` an object in chunks too, as OpenAI's SDK types them.
    """

    logprobs: int | None
    listed: bool = False


Tops = list[dict[str, float] | None]


class Lists(msgspec.Struct, gc=False):
    """Log-probabilities of a choice or a prompt; ``token_logprobs`` has null for the prompt's first token, which nothing precedes.

    ``top_logprobs`` is one map, as the SDK types it (`Optional[Dict[str, float]]`), for all the tokens together: where a text comes
    in several positions its highest value counts. ``token_top_logprobs`` is what nobody can tell from that: each token's own map. Neither
    is there if no alternatives were asked for. OpenAI's SDK, and litellm over it, type ``top_logprobs`` as that list: they get it there.
    """

    token_ids: list[int]
    tokens: list[str]
    token_logprobs: list[float | None]
    token_top_logprobs: Tops | msgspec.UnsetType = msgspec.UNSET
    top_logprobs: dict[str, float] | Tops | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, tokens: Iterable[TokenText], options: Options, tops: bool) -> Lists:
        made = cls([], [], [])
        if tops:
            made.token_top_logprobs, made.top_logprobs = [], [] if options.listed else {}
        for token in tokens:
            made.token_ids.append(token.token)
            made.tokens.append(token.label)
            made.token_logprobs.append(shown_logprob(token))
            if tops:
                made._add_tops([top_map(token)])
        return made

    def extend(self, other: Lists) -> None:
        """Append the entries of later tokens."""
        self.token_ids += other.token_ids
        self.tokens += other.tokens
        self.token_logprobs += other.token_logprobs
        if isinstance(other.token_top_logprobs, list):
            self._add_tops(other.token_top_logprobs)

    def _add_tops(self, more: Tops) -> None:
        assert isinstance(self.token_top_logprobs, list)
        self.token_top_logprobs += more
        if isinstance(self.top_logprobs, list):
            self.top_logprobs += more
        elif isinstance(self.top_logprobs, dict):
            for top in more:
                for text, logprob in (top or {}).items():
                    self.top_logprobs[text] = max(logprob, self.top_logprobs.get(text, logprob))


class Moderation(msgspec.Struct, gc=False):
    """What was found in the part of a choice that is not shown. Neither the page nor the SDK has a place for it."""

    model: str
    flagged: bool
    categories: list[str]

    @classmethod
    def of(cls, done: ChoiceDone) -> Moderation | msgspec.UnsetType:
        """Nothing of a choice in which nothing was found."""
        found = done.flagged
        return cls(found.model, True, [code for code, _ in found.categories]) if found else msgspec.UNSET


class Warned(msgspec.Struct, gc=False):
    """As the SDK types what it calls a warning of a chat completion."""

    message: str


def _warnings(choices: Iterable[ChoiceDone]) -> list[Warned] | msgspec.UnsetType:
    made = [Warned(f"Choice {done.index} ends early: what follows was {done.flagged.words}.") for done in choices if done.flagged]
    return made or msgspec.UNSET


class PromptBody(msgspec.Struct, gc=False):
    """Page, PromptPart: `logprobs` is an object, and not required: left out where none were asked for."""

    text: str
    logprobs: Lists | msgspec.UnsetType = msgspec.UNSET


class ChoiceBody(msgspec.Struct, gc=False):
    """A choice of the JSON body. Page: `seed` and no `index`, which SDK 1.x requires; `logprobs` as in ``PromptBody``."""

    text: str
    index: int
    seed: int
    finish_reason: str
    logprobs: Lists | msgspec.UnsetType = msgspec.UNSET
    moderation: Moderation | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct, gc=False):
    """The JSON body."""

    id: str
    object: str
    created: int
    model: str
    prompt: list[PromptBody]
    choices: list[ChoiceBody]
    usage: Counts
    warnings: list[Warned] | msgspec.UnsetType = msgspec.UNSET


class Delta(msgspec.Struct, gc=False, kw_only=True):
    """All that SDK 1.x shows of a chunk's choice. Page, token_id: an integer, and not required: not there where there is no token."""

    role: str
    token_id: int | msgspec.UnsetType = msgspec.UNSET
    content: str


class Token(msgspec.Struct, gc=False):
    id: int
    text: str
    logprob: float
    special: bool


_NO_TOKEN = Token(-1, "", 0.0, special=True)
"""For a last chunk that adds no token, after a stop string: the page requires one everywhere."""


class ChunkChoice(msgspec.Struct, gc=False):
    """The page's CompletionChoice, and what the service sends beside it.

    ``logprobs`` is a number: SDK 1.x refuses all else. OpenAI's types the object of the JSON body there, and LangChain, over it, fails on a
    number: they get that object, of one token.
    """

    index: int
    text: str
    delta: Delta
    logprobs: Lists | float | msgspec.UnsetType = msgspec.UNSET
    top_logprobs: dict[str, float] | msgspec.UnsetType | None = msgspec.UNSET
    seed: int | msgspec.UnsetType = msgspec.UNSET
    finish_reason: str | None = None
    moderation: Moderation | msgspec.UnsetType = msgspec.UNSET


class Chunk(msgspec.Struct, gc=False):
    """The page's CompletionChunk; ``prompt`` is in the first one if it was to be echoed, as in the JSON body."""

    id: str
    object: str
    created: int
    model: str
    token: Token
    choices: list[ChunkChoice]
    usage: Counts | None = None
    seed: int | msgspec.UnsetType = msgspec.UNSET
    finish_reason: str | None = None
    prompt: list[PromptBody] | msgspec.UnsetType = msgspec.UNSET
    warnings: list[Warned] | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class _Folded:
    """A choice put together again from its events."""

    lists: Lists | msgspec.UnsetType
    texts: list[str] = field(default_factory=list)


class TogetherRenderer:
    """See ``Renderer``. A chunk is one token; the prompt, the end of a choice and the usage go with one."""

    def __init__(self, request: CompletionRequest, identity: Identity, options: Options) -> None:
        self._identity = identity
        self._options = options
        self._lists = options.logprobs is not None
        self._tops = bool(self._lists and request.alternatives)  # of generated tokens
        self._max_tokens = request.max_tokens
        self._sent = dict.fromkeys(range(request.n), 0)  # tokens of each choice
        self._running = set(self._sent)
        self._unechoed = set(self._running) if request.echo else set()
        self._prompt_due = request.echo
        self._prompt: bytes | None = None  # as JSON; goes with the first chunk
        self._waiting: dict[int, Chunk] = {}  # a choice's newest chunk, if it may be its last
        self._held: Chunk | None = None  # the very last chunk
        self._bodies: dict[int, _Folded] = {}
        self._done: dict[int, ChoiceBody] = {}
        self._flagged: list[ChoiceDone] = []
        self._finished: Finished | None = None

    def feed(self, event: Event) -> list[bytes]:
        if isinstance(event, Failed):
            return [*map(encode, self._waiting.values()), encode(error_body(broken(event)))]
        if self._prompt is None:
            return [encode(chunk) for chunk in self._chunks(event)]
        return [made.joined(made.chunk) for made in self.apart(event)]

    def apart(self, event: Event) -> list[Apart]:
        """The chunks of ``feed``, and apart from the first one its prompt."""
        if self._prompt is None or isinstance(event, Failed):
            return [*map(Apart, self.feed(event))]
        chunks = self._chunks(event)
        if not chunks:
            return []
        chunks[0].prompt, prompt, self._prompt = ELSEWHERE, self._prompt, None
        first, *others = map(encode, chunks)
        return [Apart(first, b"prompt", prompt), *map(Apart, others)]

    def add(self, event: Event) -> None:
        match event:
            case ChoiceDelta(index, text, tokens):
                if self._is_echo(index):
                    self._prompt = self._prompt or self._echoed(event)
                    return
                choice = self._folded(index)
                choice.texts.append(text)
                if isinstance(choice.lists, Lists):
                    choice.lists.extend(Lists.of(tokens, self._options, self._tops))
            case ChoiceDone(index, finish):
                choice = self._folded(index)
                self._done[index] = ChoiceBody(
                    "".join(choice.texts), index, event.seed, _FINISH[finish], choice.lists, Moderation.of(event)
                )
                if event.flagged:
                    self._flagged.append(event)
                choice.texts.clear()
            case Finished():
                self._finished = event
            case Failed(message):
                raise ValueError(f"a failed request has no body: {message}")

    def body(self) -> Iterator[bytes]:
        if self._finished is None:
            raise ValueError("the events do not end with Finished")
        about = self._identity
        usage = Counts.of(self._finished.usage)
        flagged = _warnings(sorted(self._flagged, key=lambda done: done.index))
        prompt: Any = msgspec.Raw(self._prompt or b"[]")
        whole = Completion(about.id, "text.completion", about.created, about.model, prompt, [], usage, flagged)
        return filled(whole, (body for _, body in sorted(self._done.items())))

    def weight(self, _event: Event) -> float:
        return 0

    def late(self) -> None:
        pass

    def headers(self, _events: Sequence[Event]) -> Headers:
        return ()

    def _chunks(self, event: Event) -> list[Chunk]:
        match event:
            case ChoiceDelta(index, _, tokens):
                if not self._is_echo(index):
                    return [chunk for token in tokens for chunk in self._next(index, token)]
                if self._prompt_due:
                    self._prompt_due, self._prompt = False, self._echoed(event)
            case ChoiceDone():
                self._running.discard(event.index)
                end = self._end(event)
                if self._running:
                    return [end]
                self._held = end
            case Finished():
                last = self._held or self._chunk(_NO_TOKEN, [])
                last.usage = Counts.of(event.usage)
                return [last]
            case Failed(message):
                raise ValueError(f"a failed request has no chunks: {message}")
        return []

    def _is_echo(self, index: int) -> bool:
        """Whether this is the first delta of a choice, and so the prompt. Every choice has the same: Together takes one prompt."""
        echo = index in self._unechoed
        self._unechoed.discard(index)
        return echo

    def _next(self, index: int, token: TokenText) -> list[Chunk]:
        """The chunks that a token sets free. The end of a choice has no chunk of its own if its last token's has not gone yet.

        So tokens without text (they end a sequence mostly) and the last that may come wait. Others do not: they are what clients wait for.
        """
        before = self._waiting.pop(index, None)
        chunk = self._token(index, token)
        self._sent[index] += 1
        free = [] if before is None else [before]
        if token.raw and self._sent[index] != self._max_tokens:
            return [*free, chunk]
        self._waiting[index] = chunk
        return free

    def _token(self, index: int, token: TokenText) -> Chunk:
        logprob = shown_logprob(token) or 0.0
        choice = ChunkChoice(index, token.text, Delta(role="assistant", token_id=token.token, content=token.text))
        if self._lists:
            choice.logprobs = Lists.of((token,), self._options, self._tops) if self._options.listed else logprob
        if self._tops:
            choice.top_logprobs = top_map(token)
        return self._chunk(Token(token.token, token.text, logprob, special=not token.raw), [choice])

    def _end(self, done: ChoiceDone) -> Chunk:
        chunk = self._waiting.pop(done.index, None) or self._without_token(done.index)
        choice = chunk.choices[0]
        choice.seed = chunk.seed = done.seed
        choice.finish_reason = chunk.finish_reason = _FINISH[done.finish]
        choice.moderation, chunk.warnings = Moderation.of(done), _warnings([done])
        return chunk

    def _without_token(self, index: int) -> Chunk:
        return self._chunk(_NO_TOKEN, [ChunkChoice(index, "", Delta(role="assistant", content=""))])

    def _echoed(self, delta: ChoiceDelta) -> bytes:
        """The prompt as JSON, made with its delta: a long one is rendered in a thread, and the first token's chunk on the event loop."""
        tops = bool(self._options.logprobs)
        lists = self._empty(tops)
        if isinstance(lists, Lists):
            for at in range(0, len(delta.tokens), STRETCH):
                lists.extend(Lists.of(delta.tokens[at : at + STRETCH], self._options, tops))
        return encode([PromptBody(delta.text, lists)])

    def _folded(self, index: int) -> _Folded:
        return self._bodies.setdefault(index, _Folded(self._empty(self._tops)))

    def _empty(self, tops: bool) -> Lists | msgspec.UnsetType:
        return growing(Lists.of((), self._options, tops)) if self._lists else msgspec.UNSET

    def _chunk(self, token: Token, choices: list[ChunkChoice]) -> Chunk:
        about = self._identity
        return Chunk(about.id, "completion.chunk", about.created, about.model, token, choices)
