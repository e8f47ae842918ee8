"""Novita. Page: https://novita.ai/docs/api-reference/model-apis-llm-create-completion, quoted as "page" below.

Its users have OpenAI's SDK: there is no method for completions in its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quintet.dialects.base import (
    GREEDY_NOTE,
    GREEDY_TOP_P_NOTE,
    LEAST,
    ErrorReply,
    Headers,
    Identity,
    Parsed,
    ServedModel,
    check_choices,
    fault,
    sampling,
    switched_off,
)
from quintet.dialects.constraints import unknown_fields
from quintet.dialects.extensions import MIROSTAT, Extensions
from quintet.dialects.fields import REQUIRED, Boolean, Field, Integer, LogitBias, Number, Object, Positive, Prompts, Stop, String
from quintet.dialects.json_guard import decode_object
from quintet.dialects.novita.wire import NovitaRenderer, error_body
from quintet.dialects.wire import encode, model_entry, models_list
from quintet.errors import BadRequest, ModelNotAllowed
from quintet.quota import Meter
from quintet.request import CompletionRequest, Prompt, Sampling, StopRules

MODEL = Field("model", String(256), "", note="Required on the page; left out, it is the served model.", shown="the served model")
# Page, prompt: typed "string", but "encoded as a string, array of strings, array of tokens, or array of token arrays".
PROMPT: Field[tuple[Prompt, ...]] = Field(
    "prompt", Prompts(), (), note='All four forms of the page\'s text. `""`: the beginning of a new document.', shown=REQUIRED
)
# Page, max_tokens: "The token count of your prompt plus max_tokens cannot exceed the model's context length." No default is stated; this
# one is OpenAI's, with whose SDK the endpoint is used.
MAX_TOKENS = Field("max_tokens", Integer(0), 16, note="Prompt and `max_tokens` together must fit the context.")
STREAM = Field("stream", Boolean(), False)
# Page, stream_options: "Only set this when you set stream: true."
STREAM_OPTIONS: Field[dict[str, object]] = Field("stream_options", Object(), {}, note="Only with `stream: true`.")
INCLUDE_USAGE = Field("stream_options.include_usage", Boolean(), False)
# Page, n: "Required range: `1 < x < 128`", "default:1". The default lies outside, so the bounds must be meant to be included; so are those
# of the other fields that are written in the same way.
N = Field("n", Integer(1, 128), 1, note="Prompts times `n`: at most `--max-choices`.")
SEED: Field[int | None] = Field(
    "seed", Integer(-(2**63), 2**64 - 1), None, note="Taken modulo 2^64; sample `j` of a prompt draws with `seed + j`.", shown="drawn anew"
)
# Page, frequency_penalty and presence_penalty: "Required range: `-2 < x < 2`", and "one can increase the coefficients up to 2".
FREQUENCY_PENALTY = Field("frequency_penalty", Number(-2, 2), 0.0)
PRESENCE_PENALTY = Field("presence_penalty", Number(-2, 2), 0.0)
# Page, repetition_penalty: "Required range: `0 < x < 2`"; "A value of 1.0 means no penalty". One divides by it, so 0 stays outside.
REPETITION_PENALTY = Field("repetition_penalty", Positive(2), 1.0, note="Over prompt and output. Below 0.000001 it counts as that.")
# Page, stop: typed "string | null", but "Up to 4 sequences". "The returned text will contain the stop sequence."
STOP: Field[tuple[str, ...]] = Field("stop", Stop(4, 1024), (), note="The text ends with it. `[]` is none.")
# Page, temperature: "between 0 and 2", "Required range: `0 < x < 2`". Clients send 0 for greedy.
TEMPERATURE = Field("temperature", Number(0, 2), 1.0, note=GREEDY_NOTE)
# Page, top_p: "Required range: `0 < x <= 1`".
TOP_P = Field("top_p", Positive(1), 1.0, note=GREEDY_TOP_P_NOTE)
# Page, top_k: "Required range: `1 < x < 128`".
TOP_K = Field("top_k", Integer(1, 128), 0, note="1: greedy.", shown="off")
# Page, min_p: "Required range: `0 <= x <= 1`".
MIN_P = Field("min_p", Number(0, 1), 0.0)
# Page, logit_bias: "maps tokens to an associated bias value from -100 to 100"; typed integer, "map[string, integer]".
LOGIT_BIAS: Field[tuple[tuple[int, float], ...]] = Field(
    "logit_bias", LogitBias(1024), (), note="Any number, not only integers. -100 bans, 100 forces."
)
# Page, logprobs: "The maximum value for logprobs is 5."
LOGPROBS: Field[int | None] = Field(
    "logprobs", Integer(0, 5), None, note="0: the chosen token only. A token that cannot occur has -9999.0.", shown="off"
)
# Page, best_of: "best_of must be greater than n"; equality, which real clients send, only says that nothing is thrown away. "Results
# cannot be streamed."
BEST_OF: Field[int | None] = Field(
    "best_of",
    Integer(1, 2**31 - 1),
    None,
    note="At least `n`; over `n` not with `stream`. Prompts times it: at most `--max-choices`.",
    shown="`n`",
)

FIELDS: tuple[Field[Any], ...] = (
    *(MODEL, PROMPT, MAX_TOKENS, STREAM, STREAM_OPTIONS, INCLUDE_USAGE, N, SEED, FREQUENCY_PENALTY, PRESENCE_PENALTY, REPETITION_PENALTY),
    *(STOP, TEMPERATURE, TOP_P, TOP_K, MIN_P, LOGIT_BIAS, LOGPROBS, BEST_OF),
)
"""Every field of the page, in its order."""
EXTENSIONS = Extensions(FIELDS, stop_included=True)
KNOWN = (*FIELDS, *EXTENSIONS.fields)


class Novita:
    """See ``Dialect``."""

    name = "novita"

    def parse(self, body: bytes, fresh_seed: int) -> Parsed:
        raw = decode_object(body)
        request = EXTENSIONS.apply(raw, _request(raw, fresh_seed))
        if raw.get(STREAM_OPTIONS.name) is not None and not request.stream:
            raise BadRequest(STREAM_OPTIONS.name, "is only allowed with stream: true")
        check_choices(request)
        return Parsed(request, unknown_fields(KNOWN, raw), unheeded=switched_off(request))

    def renderer(self, request: CompletionRequest, identity: Identity, _options: object = None) -> NovitaRenderer:
        return NovitaRenderer(request, identity)

    def error(self, error: Exception) -> ErrorReply:
        known = fault(error)
        # https://novita.ai/docs/guides/error: 403 is "Access denied due to insufficient permissions. Verify that your account associated
        # with the API Key has permission to access the requested model".
        known = replace(known, status=403, code="model_access_denied") if isinstance(error, ModelNotAllowed) else known
        return ErrorReply(known.status, known.headers, encode(error_body(known)))

    def limits(self, _meters: Sequence[Meter], _over: bool) -> Headers:
        return ()  # its pages name no headers, only the status: "the limit is due to TPM (tokens per minute) or RPM (requests per minute)"

    def models(self, served: Sequence[ServedModel]) -> bytes:
        return models_list(map(_model_object, served))

    def model(self, served: ServedModel) -> bytes:
        return encode(_model_object(served))


def _request(raw: Mapping[str, object], fresh_seed: int) -> CompletionRequest:
    n, best_of = N.of(raw), BEST_OF.of(raw)
    return CompletionRequest(
        model=MODEL.of(raw),
        prompts=PROMPT.required(raw),
        max_tokens=MAX_TOKENS.of(raw),
        n=n,
        echo=False,
        logprobs=LOGPROBS.of(raw),
        sampling=_sampling(raw, fresh_seed),
        stop=StopRules(STOP.of(raw), include=True),
        stream=STREAM.of(raw),
        include_usage=INCLUDE_USAGE.of(STREAM_OPTIONS.of(raw)),
        user="",
        best_of=n if best_of is None else best_of,
    )


def _sampling(raw: Mapping[str, object], fresh_seed: int) -> Sampling:
    return replace(
        sampling(TEMPERATURE.of(raw), TOP_P.of(raw), SEED.of(raw), fresh_seed, mirostat=MIROSTAT.of(raw) > 0),
        top_k=TOP_K.of(raw),
        min_p=MIN_P.of(raw),
        repetition_penalty=max(REPETITION_PENALTY.of(raw), LEAST),
        frequency_penalty=FREQUENCY_PENALTY.of(raw),
        presence_penalty=PRESENCE_PENALTY.of(raw),
        logit_bias=LOGIT_BIAS.of(raw),
    )


def _model_object(served: ServedModel) -> dict[str, object]:
    """Novita's list with what OpenAI's SDK requires beside it; ``context_size`` is left out while it is not known."""
    prices = {"input_token_price_per_m": 0, "output_token_price_per_m": 0}
    return model_entry(served, title=served.name, description="", **prices, context_size=served.context)
