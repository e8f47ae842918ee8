"""What an answer tells beyond its provider's page, put into whatever the provider's renderer writes, in every dialect alike.

Names and shapes are vLLM's (``CompletionResponseChoice`` of its ``entrypoints/openai/completion/protocol.py``): of each choice
``prompt_token_ids``, ``token_ids``, ``prompt_logprobs`` and ``stop_reason``, and of a stream's chunks ``usage``. The renderer inside knows
nothing of it; what it wrote is taken apart only where something is to be added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import msgspec

from quintet.dialects.base import Headers, Renderer
from quintet.dialects.columns import STRETCH, Apart
from quintet.dialects.wire import FLOOR, Counts, encode
from quintet.events import ChoiceDelta, ChoiceDone, Event, Finish, TokenText
from quintet.request import CompletionRequest, Shown


@runtime_checkable
class _Padded(Protocol):
    """A renderer that makes chunks of few sizes."""

    def pad(self, chunk: bytes) -> bytes:
        """The chunk, longer."""
        ...


@runtime_checkable
class _Parting(Protocol):
    """A renderer whose chunks may be long by what is nobody else's business."""

    def apart(self, event: Event) -> list[Apart]:
        """The chunks of ``feed``, each with its long member apart."""
        ...


@dataclass(slots=True)
class _Choice:
    """What is known of a choice, and not yet told.

    Args:
        prompt: its token ids, until they are told; ``None`` also where they are not asked for.
        scores: the prompt's log-probabilities as JSON; never in a stream, where nobody may ask for them.
        ids: of generated tokens all of whose text is returned, until they are told.
        untold: how many generated tokens have come that no chunk was sent for yet.
        tokens: how many generated tokens chunks were sent for.
    """

    prompt: tuple[int, ...] | None = None
    scores: msgspec.Raw | None = None
    ids: list[int] = field(default_factory=list)
    done: ChoiceDone | None = None
    prompt_tokens: int = 0
    untold: int = 0
    tokens: int = 0


def beyond(inner: Renderer, request: CompletionRequest) -> Renderer:
    """``inner``, or around it what adds what ``request.shown`` asks for."""
    return inner if request.shown is None else Beyond(inner, request, request.shown)


class Beyond:
    """See ``Renderer``.

    Args:
        inner: writes a body with a part for each choice, in order, between a head and a tail.
    """

    def __init__(self, inner: Renderer, request: CompletionRequest, shown: Shown) -> None:
        self._inner = inner
        self._apart = inner.apart if isinstance(inner, _Parting) else None
        self._request = request
        self._shown = shown
        self._choices = [_Choice() for _ in range(len(request.prompts) * request.n)]
        self._scores: tuple[Sequence[TokenText], msgspec.Raw] | None = None  # those of the last prompt, which its samples share

    def feed(self, event: Event) -> list[bytes]:
        if self._learn(event):
            return []
        if isinstance(event, ChoiceDelta) and not (self._shown.token_ids or self._shown.usage):
            return self._inner.feed(event)
        if self._apart is None:
            return [self._chunk(chunk) for chunk in self._inner.feed(event)]
        return [made.joined(self._chunk(made.chunk)) for made in self._apart(event)]

    def add(self, event: Event) -> None:
        if not self._learn(event):
            self._inner.add(event)

    def body(self) -> Iterator[bytes]:
        for at, part in enumerate(self._inner.body()):
            if 0 < at <= len(self._choices):
                yield b"%b,%b" % (part[:-1], encode(self._of_body(self._choices[at - 1]))[1:])
            else:
                yield part

    def weight(self, event: Event) -> float:
        return self._inner.weight(event)

    def late(self) -> None:
        self._inner.late()

    def headers(self, events: Sequence[Event]) -> Headers:
        return self._inner.headers(events)

    def _learn(self, event: Event) -> bool:
        """Keep what an event says of its choice; True if it is not for the renderer inside, which has not asked for the prompt."""
        match event:
            case ChoiceDelta(index, _, tokens, prompt, scores):
                choice = self._choices[index]
                if prompt is None and scores is None:
                    # As Fireworks' own field: never for more than the text, so without a token that a stop string cut in two.
                    choice.ids += [token.token for token in tokens if token.whole]
                    choice.untold += len(tokens)
                    return False
                choice.prompt_tokens = len(prompt or ())
                choice.prompt = prompt if self._shown.token_ids else None
                choice.scores = None if scores is None else self._written(scores)
                return not (self._request.echo or self._request.prompt_ids)
            case ChoiceDone(index):
                self._choices[index].done = event
        return False

    def _chunk(self, chunk: bytes) -> bytes:
        """A chunk of the renderer inside, with what its choices have beyond it."""
        written: dict[str, Any] = msgspec.json.decode(chunk)
        padded = written.pop("obfuscation", None) is not None
        for body in written.get("choices", ()):
            choice = self._choices[body["index"]]
            # Together's chunks are one token each, if any, and some wait for the next.
            count = int(written["token"]["id"] >= 0) if "token" in written else choice.untold
            ids, choice.ids = choice.ids[:count], choice.ids[count:]
            choice.untold -= count
            choice.tokens += count
            last = bool(body.get("finish_reason"))
            body.update(self._of_chunk(choice, ids, last=last))
            if last and choice.done:
                choice.tokens = max(choice.tokens, choice.done.tokens)  # a stop string's are not shown
            if self._shown.usage and written.get("usage") is None:
                # vLLM's source, continuous_usage_stats: of the prompt and this choice so far.
                written["usage"] = Counts(choice.prompt_tokens, choice.tokens, choice.prompt_tokens + choice.tokens)
        data = encode(written)
        return self._inner.pad(data) if padded and isinstance(self._inner, _Padded) else data

    def _of_chunk(self, choice: _Choice, ids: list[int], *, last: bool) -> dict[str, Any]:
        """What a chunk tells of its choice, each thing once."""
        told: dict[str, Any] = {}
        # vLLM, return_token_ids: "In streaming mode, prompt_token_ids is included only in the first chunk, and token_ids contains the
        # delta tokens for each chunk."
        if choice.prompt is not None:
            told["prompt_token_ids"], choice.prompt = choice.prompt, None
        if self._shown.token_ids:
            told["token_ids"] = ids
        if last:
            told["stop_reason"] = _stop_reason(choice.done)
        return told

    def _of_body(self, choice: _Choice) -> dict[str, Any]:
        """What a JSON body tells of a choice."""
        told: dict[str, Any] = {"stop_reason": _stop_reason(choice.done)}
        if self._shown.token_ids:
            told |= {"prompt_token_ids": choice.prompt, "token_ids": choice.ids}
        if self._shown.prompt_logprobs is not None:
            told["prompt_logprobs"] = choice.scores
        return told

    def _written(self, scores: Sequence[TokenText]) -> msgspec.Raw:
        if self._scores is None or self._scores[0] is not scores:
            parts = [encode([*map(_position, scores[at : at + STRETCH])])[1:-1] for at in range(0, len(scores), STRETCH)]
            self._scores = scores, msgspec.Raw(b"[%b]" % b",".join(parts))
        return self._scores[1]


def _stop_reason(done: ChoiceDone | None) -> str | int | None:
    """vLLM, stop_reason: "The stop string or token id that caused the completion to stop, None if the completion finished for some other
    reason including encountering the EOS token"."""
    if done is None or done.finish not in (Finish.STOP, Finish.EOS):
        return None
    return done.stop_id if done.stop_id is not None else done.stop or None


def _position(token: TokenText) -> dict[str, dict[str, Any]] | None:
    """A prompt's token and its alternatives by their ids. vLLM tells the rank of any token; here it is known of the likeliest only."""
    if token.logprob is None:
        return None
    ranks = {id_: rank for rank, (id_, _, _) in enumerate(token.top, 1)}
    entries = {token.token: (token.label, token.logprob)} | {id_: (label, logprob) for id_, label, logprob in token.top}
    return {
        str(id_): {"logprob": max(logprob, FLOOR), "rank": ranks.get(id_), "decoded_token": label}
        for id_, (label, logprob) in entries.items()
    }
