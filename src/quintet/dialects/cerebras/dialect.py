"""Cerebras. Page: https://inference-docs.cerebras.ai/api-reference/completions, quoted as "page" below; "SDK": cerebras-cloud-sdk 1.91."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quintet.dialects.base import (
    GREEDY_NOTE,
    GREEDY_TOP_P_NOTE,
    ErrorReply,
    Headers,
    Identity,
    Parsed,
    ServedModel,
    check_choices,
    sampling,
    switched_off,
)
from quintet.dialects.cerebras import limits
from quintet.dialects.cerebras.grammar import ROOTS, guide
from quintet.dialects.cerebras.wire import CerebrasRenderer, error_body
from quintet.dialects.constraints import unknown_fields
from quintet.dialects.extensions import MIROSTAT, Extensions
from quintet.dialects.fields import Boolean, Field, Integer, LogitBias, Number, Object, OneOf, Prompts, Status, Stop, String
from quintet.dialects.json_guard import decode_object
from quintet.dialects.wire import encode, model_object, models_list
from quintet.errors import BadRequest
from quintet.quota import Meter
from quintet.request import CompletionRequest, Prompt, Sampling, StopRules

MOST = 2**31 - 1
"""Of ``n`` and ``best_of``, for which page and SDK have no maximum: the server's own limit is lower, see ``service/fan_out.py``."""

# Page, prompt: "Default: `""`".
PROMPT: Field[tuple[Prompt, ...]] = Field("prompt", Prompts(), ("",), note='Absent or `""`: the beginning of a new document.', shown='`""`')
MODEL = Field("model", String(256), "", note="Required on the page; left out, it is the served model.", shown="the served model")
STREAM = Field("stream", Boolean(), False)
RETURN_RAW_TOKENS = Field("return_raw_tokens", Boolean(), False, note="Token ids in `tokens`, no `text`. Not with `echo`.")
# Page, max_tokens: "Default: `null`". "The total length of input tokens and generated tokens is limited by the model's context length."
# So null is up to that length, and a number that does not fit is refused rather than lowered: the page does not say that it would be.
MAX_TOKENS: Field[int | None] = Field(
    "max_tokens", Integer(0), None, note="Prompt and `max_tokens` together must fit the context.", shown="up to the end of the context"
)
# Page, min_tokens: "If not specified or set to 0, the model will generate as many tokens as it deems necessary. Setting to -1 sets to
# max sequence length."
MIN_TOKENS = Field("min_tokens", Integer(-1, 2**31 - 1), 0, note="-1: up to `max_tokens` or the end of the context. At most `max_tokens`.")
# Page, grammar_root: "The grammar root used for structured output generation. Supported values: [...]".
GRAMMAR_ROOT: Field[str | None] = Field("grammar_root", OneOf(tuple(ROOTS)), None, note="See below.")
SEED: Field[int | None] = Field(
    "seed", Integer(-(2**63), 2**64 - 1), None, note="Taken modulo 2^64; sample `j` of a prompt draws with `seed + j`.", shown="drawn anew"
)
# Page, stop: "Up to 4 sequences where the API will stop generating further tokens. The returned text will not contain the stop
# sequence."
STOP: Field[tuple[str, ...]] = Field("stop", Stop(4, 1024), (), note="`[]` is none.")
# Page, temperature: "What sampling temperature to use, between 0 and 1.5." The SDK's comment says "between 0 and 2", which is OpenAI's
# text unchanged; the page holds.
TEMPERATURE = Field("temperature", Number(0, 1.5), 1.0, note=GREEDY_NOTE)
# Page, top_p: "the model considers the tokens with top_p probability mass"; with 0, the likeliest token remains.
TOP_P = Field("top_p", Number(0, 1), 1.0, note=GREEDY_TOP_P_NOTE)
# Page, echo: "Echo back the prompt in addition to the completion. Incompatible with `return_raw_tokens=True`."
ECHO = Field("echo", Boolean(), False)
USER = Field("user", String(512), "", Status.NO_OP)
# Page, logprobs: "The max value is 20." "Setting `logprobs` to 0 is different than `null`."
LOGPROBS: Field[int | None] = Field(
    "logprobs", Integer(0, 20), None, note="0: no `top_logprobs`. A token that cannot occur has -9999.0.", shown="off"
)

# SDK, best_of: "`best_of` must be greater than `n`"; equality only says that nothing is thrown away.
BEST_OF: Field[int | None] = Field(
    "best_of", Integer(1, MOST), None, note="SDK only. At least `n`; over `n` not with `stream`.", shown="`n`"
)
# SDK, frequency_penalty and presence_penalty: "Number between -2.0 and 2.0."
FREQUENCY_PENALTY = Field("frequency_penalty", Number(-2, 2), 0.0, note="SDK only.")
# SDK, logit_bias: "Dict[str, float]", "from -100 to 100"; "-100 or 100 should result in a ban or exclusive selection".
LOGIT_BIAS: Field[tuple[tuple[int, float], ...]] = Field("logit_bias", LogitBias(1024), (), note="SDK only. -100 bans, 100 forces.")
N = Field("n", Integer(1, MOST), 1, note="SDK only. Prompts times `n`: at most `--max-choices`.")
PRESENCE_PENALTY = Field("presence_penalty", Number(-2, 2), 0.0, note="SDK only.")
# SDK, prompt_cache_key: "The requests with the same prompt cache key would highly likely share the same prompt prefixes."
PROMPT_CACHE_KEY = Field("prompt_cache_key", String(512), "", note="SDK only. Cached prefixes are shared only within equal keys.")
# SDK, reasoning_format: "If set to `parsed`, the reasoning will be returned in the `reasoning` field of the response message"; a text
# completion has no message, and its text is what the model writes.
REASONING_FORMAT = Field(
    "reasoning_format",
    OneOf(("none", "parsed", "text_parsed", "raw", "hidden")),
    "none",
    Status.LATER,
    note="SDK only. `none` is accepted.",
    refusal="is not supported: a text completion has nowhere to put reasoning; leave it out, or send none",
)
STREAM_OPTIONS: Field[dict[str, object]] = Field("stream_options", Object(), {}, note="SDK only.")
# The page has no such option and its service always ends a stream with the usage, so only false changes anything.
INCLUDE_USAGE = Field("stream_options.include_usage", Boolean(), True, note="SDK only. `false` leaves `usage` out of the last chunk.")
# SDK, suffix: "(OpenAI feature, not supported)".
SUFFIX = Field(
    "suffix",
    String(),
    "",
    Status.LATER,
    note='SDK only: it says the same. `""` is none.',
    refusal="is not supported by Cerebras; leave it out",
)

FIELDS: tuple[Field[Any], ...] = (
    *(PROMPT, MODEL, STREAM, RETURN_RAW_TOKENS, MAX_TOKENS, MIN_TOKENS, GRAMMAR_ROOT, SEED, STOP, TEMPERATURE, TOP_P, ECHO, USER, LOGPROBS),
    *(BEST_OF, FREQUENCY_PENALTY, LOGIT_BIAS, N, PRESENCE_PENALTY, PROMPT_CACHE_KEY, REASONING_FORMAT),
    *(STREAM_OPTIONS, INCLUDE_USAGE, SUFFIX),
)
"""Every field of the page, in its order, then those that only the SDK has."""
EXTENSIONS = Extensions(FIELDS)
KNOWN = (*FIELDS, *EXTENSIONS.fields)

_CHECKED_ONLY = (REASONING_FORMAT, SUFFIX)


class Cerebras:
    """See ``Dialect``."""

    name = "cerebras"

    def parse(self, body: bytes, fresh_seed: int) -> Parsed:
        raw = decode_object(body)
        for field in _CHECKED_ONLY:
            field.of(raw)
        request = EXTENSIONS.apply(raw, _request(raw, fresh_seed))
        _check_together(request)
        return Parsed(request, unknown_fields(KNOWN, raw), unheeded=switched_off(request))

    def renderer(self, request: CompletionRequest, identity: Identity, _options: object = None) -> CerebrasRenderer:
        return CerebrasRenderer(request, identity)

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
    n, best_of = N.of(raw), BEST_OF.of(raw)
    cache_key, root = PROMPT_CACHE_KEY.of(raw), GRAMMAR_ROOT.of(raw)
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
        include_usage=INCLUDE_USAGE.of(STREAM_OPTIONS.of(raw)),
        user=USER.of(raw),
        best_of=n if best_of is None else best_of,
        token_ids=RETURN_RAW_TOKENS.of(raw),
        guide=None if root is None else guide(root, GRAMMAR_ROOT.name),
        cache_salt=f"key:{cache_key}" if cache_key else "",
    )


def _sampling(raw: Mapping[str, object], fresh_seed: int) -> Sampling:
    return replace(
        sampling(TEMPERATURE.of(raw), TOP_P.of(raw), SEED.of(raw), fresh_seed, mirostat=MIROSTAT.of(raw) > 0),
        frequency_penalty=FREQUENCY_PENALTY.of(raw),
        presence_penalty=PRESENCE_PENALTY.of(raw),
        logit_bias=LOGIT_BIAS.of(raw),
        min_tokens=MIN_TOKENS.of(raw),
    )


def _check_together(request: CompletionRequest) -> None:
    """Rules over more than one field."""
    if request.echo and request.token_ids:
        raise BadRequest(ECHO.name, "must not be true together with return_raw_tokens", "true")
    least, most = request.sampling.min_tokens, request.max_tokens
    if most is not None and least > most:
        raise BadRequest(MIN_TOKENS.name, "must be at most max_tokens", f"min_tokens {least} with max_tokens {most}")
    check_choices(request)
