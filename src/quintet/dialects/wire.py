"""JSON shapes that several providers share, and their encoding.

JSON goes out in ASCII: U+2028, U+2029 and U+0085 inside a chunk would split it for clients that read server-sent events with
``splitlines``. Floats are printed as the shortest text that reads back as the same float.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from itertools import repeat
from json.encoder import encode_basestring_ascii

import msgspec

from quintet.dialects.base import Fault, ServedModel
from quintet.events import Finish, TokenText, Usage

FLOOR = -9999.0
"""Stands for the log-probability of a token that cannot occur: JSON has no -Infinity, and clients know this number from vLLM."""

STOP_OR_LENGTH = {
    Finish.EOS: "stop",
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.ABORT: "length",
    Finish.ERROR: "length",
    Finish.FILTER: "length",
}
"""``finish_reason`` of pages that have these two words. A choice that broke off is told by an error instead: its ``length``, as the text is
incomplete, only keeps the table total."""

_encoder = msgspec.json.Encoder()
_ESCAPED = "quintet.json"
"""What the codec for ASCII does with a run of other characters; a search for such runs takes four times as long."""


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return encode_basestring_ascii(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(_ESCAPED, _escaped)


def encode(value: object) -> bytes:
    """JSON in ASCII, without spaces."""
    raw = _encoder.encode(value)
    if raw.isascii():
        return raw
    # Outside ASCII there are only characters of strings, so runs of them can be escaped where they stand.
    return raw.decode().encode("ascii", _ESCAPED)


def models_list(entries: Iterable[object]) -> bytes:
    """OpenAI's page of models, as all have it: an object with the entries under ``data``."""
    return encode({"object": "list", "data": [*entries]})


class Logprobs(msgspec.Struct, gc=False):
    """Parallel lists, one entry per token. ``None`` where nothing precedes the token: the first of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    @classmethod
    def of(cls, tokens: Iterable[TokenText], start: int = 0) -> Logprobs:
        """Entries of tokens.

        Args:
            start: offsets count from there, in characters from the start of the prompt text.
        """
        made = cls([], [], [], [])
        for token in tokens:
            made.tokens.append(token.label)
            made.token_logprobs.append(shown_logprob(token))
            made.top_logprobs.append(top_map(token))
            made.text_offset.append(token.offset - start)
        return made

    def extend(self, other: Logprobs) -> None:
        """Append the entries of a later chunk."""
        self.tokens += other.tokens
        self.token_logprobs += other.token_logprobs
        self.top_logprobs += other.top_logprobs
        self.text_offset += other.text_offset


_REPLACEMENT = "\ufffd"
"""Stands in a label for bytes that are no whole character."""


def shown_logprob(token: TokenText) -> float | None:
    """``None`` where nothing precedes the token."""
    return None if token.logprob is None else max(token.logprob, FLOOR)


def top_map(token: TokenText) -> dict[str, float] | None:
    """Label -> log-probability, the token itself first, so that a token was the likeliest if its label's value is the largest here.

    An alternative that is a part of a character, or whose text is taken, is called by its bytes, as OpenAI calls such tokens:
    ``bytes:\\xe6\\x97``. Of several with the same bytes the likeliest counts.
    """
    if token.logprob is None:
        return None
    logprobs = {token.label: max(token.logprob, FLOOR)}
    for (id_, label, logprob), raw in zip(token.top, token.top_raw or repeat(b""), strict=False):
        value = FLOOR if logprob < FLOOR else logprob
        if raw and id_ != token.token and (label in logprobs or (_REPLACEMENT in label and label.encode() != raw)):
            label = "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
        if label not in logprobs or value > logprobs[label]:
            logprobs[label] = value
    return logprobs


class PromptDetails(msgspec.Struct, gc=False):
    """Of the prompt's tokens. OpenAI's page, audio_tokens: "Audio input tokens present in the prompt. Default: `0`": there is no audio."""

    cached_tokens: int
    audio_tokens: int = 0


class Counts(msgspec.Struct, gc=False):
    """Token counts, as all pages have them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> Counts:
        return cls(usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens)


class CompletionDetails(msgspec.Struct, gc=False):
    """Of the completion's tokens. There is no audio.

    OpenAI's page, accepted_prediction_tokens and rejected_prediction_tokens: "When Using Predicted Outputs, the number of tokens in the
    prediction that appeared in the completion", and that "did not appear": a client's prediction. What the engine drafts by itself is
    not in them.
    """

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    audio_tokens: int = 0


class DetailedUsage(Counts, gc=False):
    """As OpenAI writes them: how many of the prompt's came out of a cache, and what became of the completion's.

    The page has both as optional, and a usage of the text so far (``continuous_usage_stats``) is without them.
    """

    prompt_tokens_details: PromptDetails | msgspec.UnsetType = msgspec.UNSET
    completion_tokens_details: CompletionDetails | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, usage: Usage) -> DetailedUsage:
        total = usage.prompt_tokens + usage.completion_tokens
        details = CompletionDetails(usage.reasoning_tokens, usage.accepted_tokens, usage.rejected_tokens)
        return cls(usage.prompt_tokens, usage.completion_tokens, total, PromptDetails(usage.cached_tokens), details)


class ErrorObject(msgspec.Struct, gc=False):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, gc=False):
    """An error as OpenAI writes it."""

    error: ErrorObject


def error_body(known: Fault) -> ErrorBody:
    """See ``ErrorBody``."""
    return ErrorBody(ErrorObject(known.message, known.type, known.param, known.code))


def model_entry(served: ServedModel, **own: object) -> dict[str, object]:
    """An entry of the models list: what OpenAI's SDK requires of one, and a dialect's own members; what is not known yet is left out."""
    about = {"id": served.name, "object": "model", "created": served.created, "owned_by": "quintet", **own}
    return {name: value for name, value in about.items() if value is not None}


def model_object(served: ServedModel) -> dict[str, object]:
    """An entry as OpenAI writes it, with what vLLM's clients look for: ``max_model_len`` is there once it is known."""
    return model_entry(served, root=served.name, max_model_len=served.context)
