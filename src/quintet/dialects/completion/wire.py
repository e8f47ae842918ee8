"""What ``/completion`` and ``/infill`` answer: llama-server's own shape. "Source": llama.cpp, tools/server/server-task.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from quintet.dialects.base import ErrorReply, Headers, Identity, failed, fault
from quintet.dialects.columns import CHARACTERS, Column
from quintet.dialects.completion.kinds import Bias, Parts
from quintet.dialects.wire import FLOOR, encode
from quintet.errors import PromptTooLong, Unsupported
from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finish, Finished, TokenText
from quintet.request import CompletionRequest, Gap


@dataclass(frozen=True, slots=True)
class Options:
    """What a request says beside the canonical one.

    Args:
        n_predict: most tokens; -1 = to the end of the context.
        samplers: the chain's names.
        slot: to be told as the answer's.
        fields: of the answer, to be shown; empty = all.
        tokens: the ids are shown.
        gap: whose prompt is still to be made.
        parts: by its number, each prompt of texts and ids that is still to be tokenised.
        biases: of ids, and of texts that are still to be tokenised.
    """

    n_predict: int
    samplers: tuple[str, ...]
    fields: tuple[str, ...]
    slot: int
    tokens: bool
    gap: Gap | None = None
    parts: tuple[tuple[int, Parts], ...] = ()
    biases: tuple[Bias, ...] = ()


@dataclass(slots=True)
class _Choice:
    """What was generated for a choice.

    Args:
        prompt: tokens of its prompt.
    """

    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    probabilities: list[Any] = field(default_factory=Column)
    prompt: int = 0
    done: ChoiceDone | None = None


_SETTINGS = 8
"""A choice's settings take as long to render as so many entries of log-probabilities."""


class LlamaRenderer:
    """See ``Renderer``. All ends come with the numbers of the whole request, so in a stream they are its last frames."""

    def __init__(self, request: CompletionRequest, identity: Identity, options: Options) -> None:
        self._request = request
        self._identity = identity
        self._options = options
        self._choices = [_Choice() for _ in range(len(request.prompts) * request.n)]
        self._finished: Finished | None = None
        # Written once for all choices, each of which tells them.
        biases = [{"token": token, "bias": bias} for token, bias in request.sampling.logit_bias]
        self._biases = msgspec.Raw(encode(biases))
        self._stops = msgspec.Raw(encode(request.stop.strings))
        self._prompt = -1, msgspec.Raw()  # the number of the last one, and its text

    def feed(self, event: Event) -> list[bytes]:
        match event:
            case Failed():
                return [error(failed(event)).body]
            case ChoiceDelta(prompt=None):
                self._add(event)
                return [encode(self._part(event))] if self._options.n_predict else []
            case Finished():
                return [encode(self._shown(self._end(index, event))) for index in range(len(self._choices))]
        self._learn(event)
        return []

    def add(self, event: Event) -> None:
        match event:
            case ChoiceDelta(prompt=None):
                self._add(event)
            case Finished():
                self._finished = event
            case Failed(message):
                raise ValueError(f"a failed request has no body: {message}")
        self._learn(event)

    def body(self) -> Iterator[bytes]:
        if self._finished is None:
            raise ValueError("the events do not end with Finished")
        # Source: "if single request, return single object instead of array".
        several = len(self._choices) > 1
        for index in range(len(self._choices)):
            answer = encode(self._shown(self._end(index, self._finished)))
            yield (b"," if index else b"[") + answer if several else answer
        if several:
            yield b"]"

    def weight(self, event: Event) -> float:
        if not isinstance(event, Finished):
            return 0
        texts = sum(len(prompt) for prompt in self._request.prompts if isinstance(prompt, str))
        return self._request.n * (_SETTINGS * len(self._request.prompts) + texts / CHARACTERS)

    def late(self) -> None:
        pass

    def headers(self, _events: Sequence[Event]) -> Headers:
        return ()

    def _learn(self, event: Event) -> None:
        match event:
            case ChoiceDelta(index, prompt=tuple(ids)):
                self._choices[index].prompt = len(ids)
            case ChoiceDone(index):
                # Page, n_predict: "When 0, no tokens will be generated": how the token ended that is computed for it is nobody's business.
                self._choices[index].done = event if self._options.n_predict else ChoiceDone(index, Finish.LENGTH, seed=event.seed)

    def _add(self, delta: ChoiceDelta) -> None:
        if self._options.n_predict == 0:
            return
        choice = self._choices[delta.index]
        choice.texts.append(delta.text)
        choice.ids += [token.token for token in delta.tokens]
        if self._request.logprobs is not None and not self._request.stream:
            choice.probabilities += self._probabilities(delta.tokens)

    def _part(self, delta: ChoiceDelta) -> dict[str, object]:
        choice = self._choices[delta.index]
        part: dict[str, object] = {
            "index": delta.index,
            "content": delta.text,
            "tokens": [token.token for token in delta.tokens],
            "stop": False,
            "id_slot": self._options.slot,
            "tokens_predicted": len(choice.ids),
            "tokens_evaluated": choice.prompt,
        }
        return part if self._request.logprobs is None else part | {"completion_probabilities": self._probabilities(delta.tokens)}

    def _probabilities(self, tokens: Sequence[TokenText]) -> list[dict[str, object]]:
        """Source, probs_vector_to_json. The numbers are the model's own log-probabilities."""
        most = self._request.logprobs or 0
        entries: list[dict[str, object]] = []
        for token in tokens:
            alternatives = zip(token.top[:most], token.top_raw[:most], strict=True)
            entry = _entry(token.token, token.label, token.logprob or 0.0, token.raw)
            entry["top_logprobs"] = [_entry(id_, label, logprob, raw) for (id_, label, logprob), raw in alternatives]
            entries.append(entry)
        return entries

    def _end(self, index: int, finished: Finished) -> dict[str, object]:
        """The whole answer of a choice."""
        choice = self._choices[index]
        done, text = choice.done, "".join(choice.texts)
        assert done is not None
        tokens = done.tokens
        prompt = index // self._request.n
        as_sent = {"prompt": self._written(prompt)} if self._options.gap is None and isinstance(self._request.prompts[prompt], str) else {}
        answer: dict[str, object] = {
            "index": index,
            "content": "" if self._request.stream else text,
            "tokens": choice.ids if self._options.tokens and not self._request.stream else [],
            "id_slot": self._options.slot,
            "stop": True,
            "model": self._identity.model,
            "tokens_predicted": tokens,
            "tokens_evaluated": choice.prompt,
            "generation_settings": self._settings(done.seed),
            **as_sent,
            "has_new_line": "\n" in text,
            "truncated": done.finish is Finish.LENGTH and tokens != self._options.n_predict,
            "stop_type": _stop_type(done),
            "stopping_word": done.stop,
            "tokens_cached": choice.prompt + max(tokens - 1, 0),
            "timings": _timings(finished, tokens),
        }
        return answer | {"completion_probabilities": choice.probabilities} if choice.probabilities else answer

    def _written(self, prompt: int) -> msgspec.Raw:
        """A prompt's text as JSON, once for all its samples."""
        if self._prompt[0] != prompt:
            self._prompt = prompt, msgspec.Raw(encode(self._request.prompts[prompt]))
        return self._prompt[1]

    def _settings(self, seed: int) -> dict[str, object]:
        """What was in force for a choice, under llama-server's names."""
        request, controls, dry = self._request, self._request.sampling, self._request.sampling.dry
        return {
            "seed": seed,
            "temperature": controls.temperature,
            "top_k": controls.top_k,
            "top_p": controls.top_p,
            "min_p": controls.min_p,
            "top_n_sigma": controls.top_n_sigma or -1.0,
            "xtc_probability": controls.xtc_probability,
            "xtc_threshold": controls.xtc_threshold,
            "typical_p": controls.typical_p,
            "repeat_last_n": -1,
            "repeat_penalty": controls.repetition_penalty,
            "presence_penalty": controls.presence_penalty,
            "frequency_penalty": controls.frequency_penalty,
            "dry_multiplier": dry.multiplier,
            "dry_base": dry.base,
            "dry_allowed_length": dry.allowed_length,
            "dry_penalty_last_n": dry.range,
            "dry_sequence_breakers": dry.breakers,
            "mirostat": 2 if controls.mirostat_target else 0,
            "mirostat_tau": controls.mirostat_target or 5.0,
            "mirostat_eta": controls.mirostat_lr,
            "stop": self._stops,
            "n_predict": self._options.n_predict,
            "max_tokens": self._options.n_predict,
            "n_indent": request.stop.indent,
            "t_max_predict_ms": request.stop.seconds * 1000,
            "ignore_eos": controls.ignore_eos,
            "logit_bias": self._biases,
            "stream": request.stream,
            "n_probs": request.logprobs or 0,
            "samplers": self._options.samplers,
            "lora": [],
        }

    def _shown(self, answer: dict[str, object]) -> dict[str, object]:
        # Page, response_fields: "If the specified field is missing, it will be omitted from the response without triggering an error.
        # Fields with a slash will be unnested".
        if not self._options.fields:
            return answer
        found = {path: _at(answer, path) for path in self._options.fields}
        return {path: value for path, value in found.items() if value is not _MISSING}


def renderer(request: CompletionRequest, identity: Identity, options: object) -> LlamaRenderer:
    """That of both routes."""
    if not isinstance(options, Options):
        raise TypeError("options must come from the same format's parse")
    return LlamaRenderer(request, identity, options)


_MISSING = object()


def _at(answer: object, path: str) -> object:
    """What is found there. Of a path no more is looked at than leads somewhere: there may be 256 long ones, for each choice."""
    slash, rest = "/", path
    while slash:
        name, slash, rest = rest.partition("/")
        if not isinstance(answer, dict) or name not in answer:
            return _MISSING
        answer = answer[name]
    return answer


def _stop_type(done: ChoiceDone) -> str:
    if done.finish is Finish.STOP and done.stop:
        return "word"
    return "eos" if done.finish is Finish.EOS or done.stop_id is not None else "limit"


def _entry(token: int, label: str, logprob: float, raw: bytes) -> dict[str, object]:
    # Source, probs_vector_to_json: "bytes" are those of common_token_to_piece, which writes control tokens out.
    return {"id": token, "token": label, "bytes": list(raw or label.encode()), "logprob": max(logprob, FLOOR)}


def _timings(finished: Finished, tokens: int) -> dict[str, int | float]:
    """The times and the counts of prompts are the whole request's, so that they belong together; the tokens are a choice's own."""
    usage, timing = finished.usage, finished.timing
    computed = usage.prompt_tokens - usage.cached_tokens
    made: dict[str, int | float] = {"cache_n": usage.cached_tokens}
    for name, count, seconds in (("prompt", computed, timing.prompt), ("predicted", tokens, timing.completion)):
        ms = round(seconds * 1000, 3)
        made |= {f"{name}_n": count, f"{name}_ms": ms}
        made |= {f"{name}_per_token_ms": ms / count if count else 0.0, f"{name}_per_second": count / ms * 1000 if ms else 0.0}
    return made


_TYPES = {401: "authentication_error", 404: "not_found_error", 503: "unavailable_error"}
"""Source, format_error_response; others are in OpenAI's words there too."""


def error(failure: Exception) -> ErrorReply:
    """As llama-server writes it; ``code`` is the status."""
    known = fault(failure)
    status, kind = known.status, _TYPES.get(known.status, known.type)
    if isinstance(failure, PromptTooLong):
        kind = "exceed_context_size_error"
    elif isinstance(failure, Unsupported):
        status, kind = 501, "not_supported_error"
    return ErrorReply(status, known.headers, encode({"error": {"code": status, "message": known.message, "type": kind}}))
