"""OpenAI's legacy completions. Page: https://platform.openai.com/docs/api-reference/completions/create, quoted as "page" below."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from quintet.dialects.base import (
    GREEDY_NOTE,
    GREEDY_TOP_P_NOTE,
    ErrorReply,
    Headers,
    Identity,
    Parsed,
    ServedModel,
    broken,
    check_choices,
    sampling,
    switched_off,
)
from quintet.dialects.chunks import ChunkRenderer
from quintet.dialects.constraints import unknown_fields
from quintet.dialects.extensions import MIROSTAT, Extensions
from quintet.dialects.fields import Boolean, Field, Integer, LogitBias, Number, Object, Prompts, Status, Stop, String
from quintet.dialects.json_guard import decode_object
from quintet.dialects.openai import limits
from quintet.dialects.wire import STOP_OR_LENGTH, DetailedUsage, Logprobs, encode, error_body, model_object, models_list
from quintet.errors import BadRequest
from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finished
from quintet.quota import Meter
from quintet.request import CompletionRequest, Prompt, Sampling, StopRules

MOST = 2**31 - 1
"""Of ``n`` and ``best_of``, for which the page has no maximum: the server's own limit on choices is lower, see ``service/fan_out.py``."""

MODEL = Field("model", String(256), "", note="Required on the page; left out, it is the served model.", shown="the served model")
# Page, prompt: "<|endoftext|> is the document separator that the model sees during training, so if a prompt is not specified the
# model will generate as if from the beginning of a new document." What separates documents depends on the model: the backend
# knows, and reads an empty prompt so.
PROMPT: Field[tuple[Prompt, ...]] = Field(
    "prompt", Prompts(), ("",), note='Absent or `""`: the beginning of a new document.', shown="the model's document separator"
)
# Page, best_of: "`best_of` must be greater than `n`"; equality, which real clients send, only says that nothing is thrown away.
BEST_OF: Field[int | None] = Field("best_of", Integer(1, MOST), None, note="At least `n`; more than `n` not with `stream`.", shown="`n`")
ECHO = Field("echo", Boolean(), False)
# Page, frequency_penalty and presence_penalty: "Number between -2.0 and 2.0."
FREQUENCY_PENALTY = Field("frequency_penalty", Number(-2, 2), 0.0)
PRESENCE_PENALTY = Field("presence_penalty", Number(-2, 2), 0.0)
# Page, logit_bias: "maps tokens [...] to an associated bias value from -100 to 100"; "values like -100 or 100 should result in a ban or
# exclusive selection of the relevant token."
LOGIT_BIAS: Field[tuple[tuple[int, float], ...]] = Field(
    "logit_bias", LogitBias(1024), (), note="Any number, not only integers. -100 bans, 100 forces."
)
# Page, logprobs: "The maximum value for `logprobs` is 5."
LOGPROBS: Field[int | None] = Field(
    "logprobs", Integer(0, 5), None, note="0: the chosen token only. A token that cannot occur has -9999.0.", shown="off"
)
# Page, max_tokens: "Default: `16`." "The token count of your prompt plus `max_tokens` cannot exceed the model's context length."
MAX_TOKENS = Field("max_tokens", Integer(0), 16, note="Prompt and `max_tokens` together must fit the context.")
# Page, n: "How many completions to generate for each prompt."
N = Field("n", Integer(1, MOST), 1, note="Prompts times `n`: at most `--max-choices`.")
SEED: Field[int | None] = Field(
    "seed", Integer(-(2**63), 2**64 - 1), None, note="Taken modulo 2^64; sample `j` of a prompt draws with `seed + j`.", shown="drawn anew"
)
# Page, stop: "Up to 4 sequences where the API will stop generating further tokens. The returned text will not contain the stop
# sequence." More are taken: lm-eval and Continue cut their lists to 4 for OpenAI's own host only, and send all of them to any other.
STOP: Field[tuple[str, ...]] = Field("stop", Stop(32, 1024), (), note="The page has up to 4. `[]` is none.")
STREAM = Field("stream", Boolean(), False)
STREAM_OPTIONS: Field[dict[str, object]] = Field("stream_options", Object(), {}, note="Only with `stream: true`.")
INCLUDE_USAGE = Field("stream_options.include_usage", Boolean(), False)
# Page, include_obfuscation: "Stream obfuscation adds random characters to an `obfuscation` field on streaming delta events to normalize
# payload sizes [...]. These obfuscation fields are included by default".
INCLUDE_OBFUSCATION = Field("stream_options.include_obfuscation", Boolean(), True, note="Chunks of few sizes, whatever the text.")
# Page, suffix: "The suffix that comes after a completion of inserted text."
SUFFIX = Field("suffix", String(), "", note='400 for a model without fill-in-the-middle tokens. `""` is none.')
# Page, temperature: "What sampling temperature to use, between 0 and 2."
TEMPERATURE = Field("temperature", Number(0, 2), 1.0, note=GREEDY_NOTE)
# Page, top_p: "the model considers the results of the tokens with top_p probability mass"; with 0, the likeliest token remains.
TOP_P = Field("top_p", Number(0, 1), 1.0, note=GREEDY_TOP_P_NOTE)
# Page, user: "A unique identifier representing your end-user, which can help OpenAI to monitor and detect abuse."
USER = Field("user", String(512), "", Status.NO_OP)

FIELDS: tuple[Field[Any], ...] = (
    MODEL,
    PROMPT,
    BEST_OF,
    ECHO,
    FREQUENCY_PENALTY,
    LOGIT_BIAS,
    LOGPROBS,
    MAX_TOKENS,
    N,
    PRESENCE_PENALTY,
    SEED,
    STOP,
    STREAM,
    STREAM_OPTIONS,
    INCLUDE_USAGE,
    INCLUDE_OBFUSCATION,
    SUFFIX,
    TEMPERATURE,
    TOP_P,
    USER,
)
"""Every field of the page, in its order."""
EXTENSIONS = Extensions(FIELDS)
KNOWN = (*FIELDS, *EXTENSIONS.fields)

# Page, finish_reason: "`stop` if the model hit a natural stop point or a provided stop sequence, `length` if the maximum number of
# tokens specified in the request was reached". It has no word for a choice that broke off: the server answers with an error
# instead.
_FINISH = STOP_OR_LENGTH


class ChoiceBody(msgspec.Struct, gc=False):
    text: str
    index: int
    logprobs: Logprobs | None
    finish_reason: str | None

    def extend(self, later: ChoiceBody) -> None:
        if self.logprobs is not None and later.logprobs is not None:
            self.logprobs.extend(later.logprobs)


class Completion(msgspec.Struct, gc=False):
    """The JSON body and, in the same shape, every stream chunk."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChoiceBody]
    usage: DetailedUsage | msgspec.UnsetType | None = msgspec.UNSET


class Padding:
    """Pads chunks so that their sizes tell next to nothing of the text: most are one step longer than an empty chunk, the others two
    steps, four, eight and so on.

    Args:
        seed: the padding is drawn from it; different for each response.
        empty: bytes of a chunk without text.
        step: bytes that what nearly all tokens add will fit in.
    """

    def __init__(self, seed: str, empty: int, step: int) -> None:
        self._pool = hashlib.shake_128(seed.encode()).hexdigest(_POOL)[:_POOL].encode() * 2
        self._step = step
        self._empty = empty
        self._at = 0

    def pad(self, chunk: bytes) -> bytes:
        """The chunk with a field ``obfuscation`` at its end."""
        step = self._step
        while (missing := self._empty + step - len(chunk)) < 0:
            step *= 2
        self._at = at = (self._at + 61) % _POOL  # one draw per response serves all its chunks, each from another place
        pool = self._pool if missing <= _POOL else self._pool * (missing // _POOL + 1)
        return b"".join((chunk[:-1], _OBFUSCATION, pool[at : at + missing], b'"}'))


_OBFUSCATION = b',"obfuscation":"'
_POOL = 1021  # bytes; a prime, so that places do not come back soon


class OpenAIRenderer(ChunkRenderer[ChoiceBody, Completion]):
    """See ``Renderer``."""

    def __init__(self, request: CompletionRequest, identity: Identity, obfuscate: bool) -> None:
        super().__init__(request, end_alone=True)
        self._identity = identity
        self._logprobs = request.logprobs is not None
        self._include_usage = request.include_usage
        empty, step = len(encode(self._body(self._pieces(ChoiceDelta(0, ""))))), 512 if self._logprobs else 20
        self._padding = Padding(identity.id, empty, step) if obfuscate else None

    def feed(self, event: Event) -> list[bytes]:
        # Page, include_usage: "an additional chunk will be streamed before the `data: [DONE]` message."
        if isinstance(event, Finished) and not self._include_usage:
            return []
        chunks = super().feed(event)
        return chunks if isinstance(event, Failed) else [self.pad(chunk) for chunk in chunks]

    def pad(self, chunk: bytes) -> bytes:
        """The chunk with its obfuscation, if there is to be any."""
        return chunk if self._padding is None else self._padding.pad(chunk)

    def _pieces(self, delta: ChoiceDelta) -> list[ChoiceBody]:
        return [ChoiceBody(delta.text, delta.index, self._entries(delta.tokens, Logprobs.of) if self._logprobs else None, None)]

    def _end(self, done: ChoiceDone) -> ChoiceBody:
        # As the live API does, an empty chunk; its lists of log-probabilities are empty too.
        return ChoiceBody("", done.index, Logprobs.of(()) if self._logprobs else None, _FINISH[done.finish])

    def _finish(self, last: Completion, event: Finished) -> None:
        # Page, include_usage: "the `choices` field will always be an empty array."
        last.usage = DetailedUsage.of(event.usage)

    def _broken(self, event: Failed) -> object:
        return error_body(broken(event))

    def _body(self, choices: list[ChoiceBody]) -> Completion:
        about = self._identity
        # Page, include_usage: "All other chunks will also include a `usage` field, but with a null value."
        usage = None if self._include_usage else msgspec.UNSET
        return Completion(f"cmpl-{about.id}", "text_completion", about.created, about.model, about.fingerprint, choices, usage)


class OpenAI:
    """See ``Dialect``."""

    name = "openai"

    def parse(self, body: bytes, fresh_seed: int) -> Parsed:
        raw = decode_object(body)
        request = EXTENSIONS.apply(raw, _request(raw, fresh_seed))
        _check_together(raw, request)
        obfuscate = request.stream and INCLUDE_OBFUSCATION.of(STREAM_OPTIONS.of(raw))
        return Parsed(request, unknown_fields(KNOWN, raw), obfuscate, switched_off(request))

    def renderer(self, request: CompletionRequest, identity: Identity, options: object = None) -> OpenAIRenderer:
        return OpenAIRenderer(request, identity, obfuscate=options is True)

    def error(self, error: Exception) -> ErrorReply:
        known = limits.worded(error)
        return ErrorReply(known.status, known.headers, encode(error_body(known)))

    def limits(self, meters: Sequence[Meter], _over: bool) -> Headers:
        return limits.headers(meters)

    def models(self, served: Sequence[ServedModel]) -> bytes:
        return models_list(map(model_object, served))

    def model(self, served: ServedModel) -> bytes:
        return encode(model_object(served))


def _request(raw: Mapping[str, object], fresh_seed: int) -> CompletionRequest:
    n, best_of, options = N.of(raw), BEST_OF.of(raw), STREAM_OPTIONS.of(raw)
    return CompletionRequest(
        model=MODEL.of(raw),
        prompts=PROMPT.of(raw),
        max_tokens=MAX_TOKENS.of(raw),
        n=n,
        echo=ECHO.of(raw),
        logprobs=LOGPROBS.of(raw),
        sampling=_sampling(raw, fresh_seed),
        stop=StopRules(STOP.of(raw)),
        stream=STREAM.of(raw),
        include_usage=INCLUDE_USAGE.of(options),
        user=USER.of(raw),
        best_of=n if best_of is None else best_of,
        suffix=SUFFIX.of(raw),
    )


def _sampling(raw: Mapping[str, object], fresh_seed: int) -> Sampling:
    return replace(
        sampling(TEMPERATURE.of(raw), TOP_P.of(raw), SEED.of(raw), fresh_seed, mirostat=MIROSTAT.of(raw) > 0),
        frequency_penalty=FREQUENCY_PENALTY.of(raw),
        presence_penalty=PRESENCE_PENALTY.of(raw),
        logit_bias=LOGIT_BIAS.of(raw),
    )


def _check_together(raw: Mapping[str, object], request: CompletionRequest) -> None:
    """Rules over more than one field."""
    check_choices(request)
    if raw.get(STREAM_OPTIONS.name) is not None and not request.stream:
        raise BadRequest(STREAM_OPTIONS.name, "is only allowed with stream: true")
