"""Fireworks. Page: https://docs.fireworks.ai/api-reference/post-completions, quoted as "page" below; "SDK": fireworks-ai 1.x."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
    fault,
    sampling,
    switched_off,
)
from quintet.dialects.constraints import Grammar, Schema, response_format, unknown_fields
from quintet.dialects.extensions import Extensions
from quintet.dialects.fields import (
    REQUIRED,
    Boolean,
    Field,
    Integer,
    LogitBias,
    Number,
    Object,
    OneOf,
    Prompts,
    Status,
    Stop,
    String,
)
from quintet.dialects.fireworks import limits
from quintet.dialects.fireworks.images import NONE, Images, by_prompt
from quintet.dialects.fireworks.kinds import EFFORTS, Effort, LogprobsChoice, at_most_high
from quintet.dialects.fireworks.wire import FireworksRenderer, Options, Shape, error_body
from quintet.dialects.json_guard import decode_object
from quintet.dialects.predictions import Predicted, Speculation
from quintet.dialects.wire import encode, model_entry, models_list
from quintet.errors import BadRequest, shorten
from quintet.quota import Meter
from quintet.request import CompletionRequest, Prompt, Reasoning, Sampling, StopRules

MODEL = Field("model", String(256), "", note="Required on the page; left out, it is the served model.", shown="the served model")
# Page, prompt: "It can be a single string or an array of strings. It can also be an array of integers or an array of integer arrays";
# arrays have "minItems: 1".
PROMPT: Field[tuple[Prompt, ...]] = Field("prompt", Prompts(), (), note='`""`: the beginning of a new document.', shown=REQUIRED)
# Page, images: "The list of base64 encoded images for visual language completition generation."
# Guide, completions: "manually insert the image token <image> in your prompt and supply images as an ordered list".
IMAGES = Field("images", Images(), NONE, note="As many as `<image>` in the prompt. A 400 on a model that sees none.", shown="unset")
# Page, max_tokens: "minimum: 0, default: 16, nullable: true"; null is the default, as for every field.
MAX_TOKENS: Field[int | None] = Field(
    "max_tokens", Integer(0), None, note="Lowered to fit the context, see `context_length_exceeded_behavior`.", shown="`16`"
)
# SDK, max_completion_tokens: "Alias for max_tokens. Cannot be specified together with max_tokens."
MAX_COMPLETION_TOKENS: Field[int | None] = Field(
    "max_completion_tokens", Integer(0), None, note="SDK only: another name of `max_tokens`; not both."
)
# Page, echo_last: "Passing `echo_last=len(prompt)` is the same as `echo=True`". Both given, the narrower one holds.
ECHO_LAST: Field[int | None] = Field("echo_last", Integer(0), None, note="Overrides `echo`; 0: nothing is echoed.")
TEMPERATURE = Field("temperature", Number(0, 2), 1.0, note=GREEDY_NOTE)
TOP_P = Field("top_p", Number(0, 1), 1.0, note=GREEDY_TOP_P_NOTE)
# Page, top_k: "Must be between 0 and 100."
TOP_K = Field("top_k", Integer(0, 100), 0, note="0: off.", shown="off")
FREQUENCY_PENALTY = Field("frequency_penalty", Number(-2, 2), 0.0)
PERF_METRICS = Field("perf_metrics_in_response", Boolean(), False, note="JSON answers have them as headers too, always.")
PRESENCE_PENALTY = Field("presence_penalty", Number(-2, 2), 0.0)
# Page, repetition_penalty: "minimum: 0, maximum: 2"; one divides by it.
REPETITION_PENALTY = Field("repetition_penalty", Number(0, 2), 1.0, note="Over prompt and output. Below 0.000001 it counts as that.")
REASONING_EFFORT: Field[int | None] = Field(
    "reasoning_effort",
    Effort(),
    None,
    note=f"`low`: {EFFORTS['low']} tokens, `medium`: {EFFORTS['medium']}. Anything but `none` is a 400 on a model that does not reason.",
)
# Page, mirostat_lr: "learning rate for the Mirostat sampling algorithm"; no bounds. A negative one would drive away from the target.
MIROSTAT_LR = Field("mirostat_lr", Number(0, 1000), 0.1, note="Without `mirostat_target` it has no effect.")
# Page, mirostat_target: "Defines the target perplexity for the Mirostat algorithm. [...] If not specified, Mirostat sampling is
# disabled." Perplexity is 2 to the power of the surprise in bits that the algorithm is written in, and at least 1.
MIROSTAT_TARGET: Field[float | None] = Field(
    "mirostat_target",
    Number(1, 1_000_000),
    None,
    note="A perplexity, so tau is its base-2 logarithm; 1: greedy.",
    shown="off",
)
# Page, n: "minimum: 1, maximum: 128"; prompts have none.
N = Field("n", Integer(1, 128), 1, note="Prompts times `n`: at most `--max-choices`.")
# Page, ignore_eos: "the model will continue generating tokens even after the EOS token is produced".
IGNORE_EOS = Field("ignore_eos", Boolean(), False, note="The token is drawn, counted and among the ids; it has no text.")
# Page, stop: "minItems: 1, maxItems: 4". "The returned text will NOT contain the stop sequence." Clients with nothing to stop at
# send an empty array.
STOP: Field[tuple[str, ...]] = Field("stop", Stop(4, 1024), (), note="`[]` is none.")
RESPONSE_FORMAT: Field[dict[str, object] | None] = Field("response_format", Object(), None)
# Page, response_format.type: "Must be one of `text`, `json_object` or `json_schema`"; `grammar` is the SDK's.
FORMAT_TYPE = Field(
    "response_format.type",
    OneOf(("text", "json_object", "json_schema", "grammar")),
    "",
    note="`grammar`: SDK only.",
    shown=REQUIRED,
)
# Page, json_schema: "JSON schema according to https://json-schema.org/specification", bare; OpenAI's clients wrap it.
JSON_SCHEMA = Field("response_format.json_schema", Schema(), "", note='Bare, or as OpenAI has it: `{"name": ..., "schema": ...}`.')
SCHEMA = Field("response_format.schema", Schema(), "", note="SDK only: another name of `json_schema`; also with `json_object`.")
GRAMMAR = Field("response_format.grammar", Grammar(), "", note="SDK only. GBNF or Lark.")
STREAM = Field("stream", Boolean(), False)
# Page, context_length_exceeded_behavior: "Passing `truncate` limits the `max_tokens` to at most `context_window_length -
# prompt_length`. This is the default. Passing `error` would trigger a request error." A prompt that alone is too long is an error.
CONTEXT_EXCEEDED = Field("context_length_exceeded_behavior", OneOf(("truncate", "error")), "truncate")
# Page, logprobs: "`true` [...] OpenAI-compatible [...]. If set to an integer N (0-5) [...] the legacy format".
LOGPROBS: Field[bool | int | None] = Field(
    "logprobs", LogprobsChoice(5), None, note="An integer: parallel lists. `true`: the newer `content` list.", shown="off"
)
# Page, top_logprobs: "When `logprobs` is set, `top_logprobs` can be used to modify how many top log probabilities are returned."
TOP_LOGPROBS: Field[int | None] = Field("top_logprobs", Integer(0, 5), None, note="Needs `logprobs`, and overrides its number.")
ECHO = Field("echo", Boolean(), False)
# Page, min_p: "Only tokens with probability >= min_p are considered for selection." Not relative to the likeliest, as vLLM has it.
MIN_P = Field("min_p", Number(0, 1), 0.0, note="A probability, not a share of the likeliest token's; that one always stays.")
# Page, typical_p: "the most typical tokens whose cumulative probability is at most typical_p". Others keep the token that reaches it.
TYPICAL_P = Field("typical_p", Number(0, 1), 1.0, note="The tokens' mass is at most that; the most typical one always stays.")
# Page, logit_bias: "maps tokens (specified by their token ID in the tokenizer) to an associated bias value from -100 to 100."
LOGIT_BIAS: Field[tuple[tuple[int, float], ...]] = Field("logit_bias", LogitBias(1024), (), note="-100 bans, 100 forces.")
USER = Field("user", String(512), "", Status.NO_OP)

SEED: Field[int | None] = Field(
    "seed",
    Integer(-(2**63), 2**64 - 1),
    None,
    note="SDK only. Taken modulo 2^64; sample `j` of a prompt draws with `seed + j`.",
    shown="drawn anew",
)
RETURN_TOKEN_IDS = Field("return_token_ids", Boolean(), False, note="SDK only.")
RAW_OUTPUT = Field("raw_output", Boolean(), False, note="SDK only.")
# SDK, prompt_cache_isolation_key: "Isolation key for prompt caching to separate cache entries."
CACHE_ISOLATION = Field("prompt_cache_isolation_key", String(512), "", note="SDK only.")
# SDK, prompt_cache_key: "Requests with the same prompt_cache_key are routed to the same backend".
CACHE_KEY = Field("prompt_cache_key", String(512), "", note="SDK only. Shares a cache only within equal keys; the isolation key overrides.")
# SDK, thinking: "This is an alternative to `reasoning_effort`"; "Cannot be specified together with `reasoning_effort`."
THINKING: Field[dict[str, object] | None] = Field(
    "thinking", Object(), None, note="SDK only. Not with `reasoning_effort`; `enabled` is a 400 likewise."
)
THINKING_TYPE = Field("thinking.type", OneOf(("enabled", "disabled")), "", shown=REQUIRED, note="SDK only.")
# SDK, budget_tokens: "Must be >= 1024 if specified."
THINKING_BUDGET: Field[int | None] = Field("thinking.budget_tokens", Integer(1024), None, note="SDK only. Without it: as `medium`.")
METADATA: Field[dict[str, object]] = Field("metadata", Object(), {}, Status.NO_OP, note="SDK only: for tracing.")
# SDK, service_tier: "Only "priority" is supported, while all other values will be treated as "default" tier."
SERVICE_TIER = Field("service_tier", String(64), "", Status.NO_OP, note="SDK only: there is one tier, whatever is asked for.")
# SDK, speculation: "Speculative decoding prompt or token IDs to speed up generation"; prediction: "OpenAI-compatible predicted output for
# speculative decoding. Can be a PredictedOutput object or a simple string. Automatically transformed to speculation."
SPECULATION: Field[Prompt] = Field("speculation", Speculation(), "", note="SDK only: what the text may be; drafted, and never trusted.")
PREDICTION = Field("prediction", Predicted(), "", note="SDK only: the same as a text; not both.")
# SDK, reasoning_history: "how historical assistant reasoning content is included in the prompt for multi-turn conversations".
REASONING_HISTORY = Field(
    "reasoning_history", OneOf(("disabled", "interleaved", "preserved")), "", Status.NO_OP, note="SDK only: a prompt has no turns."
)

FIELDS: tuple[Field[Any], ...] = (
    *(MODEL, PROMPT, IMAGES, MAX_TOKENS, ECHO_LAST, TEMPERATURE, TOP_P, TOP_K, FREQUENCY_PENALTY, PERF_METRICS, PRESENCE_PENALTY),
    *(REPETITION_PENALTY, REASONING_EFFORT, MIROSTAT_LR, MIROSTAT_TARGET, N, IGNORE_EOS, STOP),
    *(RESPONSE_FORMAT, FORMAT_TYPE, JSON_SCHEMA, SCHEMA, GRAMMAR),
    *(STREAM, CONTEXT_EXCEEDED, LOGPROBS, TOP_LOGPROBS, ECHO, MIN_P, TYPICAL_P, LOGIT_BIAS, USER),
    *(MAX_COMPLETION_TOKENS, SEED, RETURN_TOKEN_IDS, RAW_OUTPUT, CACHE_ISOLATION, CACHE_KEY, THINKING, THINKING_TYPE, THINKING_BUDGET),
    *(METADATA, SERVICE_TIER, SPECULATION, PREDICTION, REASONING_HISTORY),
)
"""Every field of the page, in its order, then those that only the SDK has."""
EXTENSIONS = Extensions(FIELDS)
KNOWN = (*FIELDS, *EXTENSIONS.fields)

_CHECKED_ONLY = (METADATA, SERVICE_TIER, REASONING_HISTORY)
_MAX_TOKENS_UNSET = 16


class Fireworks:
    """See ``Dialect``."""

    name = "fireworks"

    def parse(self, body: bytes, fresh_seed: int) -> Parsed:
        raw = decode_object(body)
        for field in _CHECKED_ONLY:
            field.of(raw)
        options = _options(raw)
        request = EXTENSIONS.apply(raw, _request(raw, options, fresh_seed))
        return Parsed(request, unknown_fields(KNOWN, raw), options, switched_off(request))

    def renderer(self, request: CompletionRequest, identity: Identity, options: object = None) -> FireworksRenderer:
        if not isinstance(options, Options):
            raise TypeError("options must come from the same dialect's parse")
        return FireworksRenderer(request, identity, options)

    def error(self, error: Exception) -> ErrorReply:
        known = fault(error)
        return ErrorReply(known.status, known.headers, encode(error_body(known)))

    def limits(self, meters: Sequence[Meter], over: bool) -> Headers:
        return limits.headers(meters, over)

    def models(self, served: Sequence[ServedModel]) -> bytes:
        return models_list(map(_model_object, served))

    def model(self, served: ServedModel) -> bytes:
        return encode(_model_object(served))


def _options(raw: Mapping[str, object]) -> Options:
    logprobs, top = LOGPROBS.of(raw), TOP_LOGPROBS.of(raw)
    off = logprobs is None or logprobs is False
    if off and top is not None:
        raise BadRequest(TOP_LOGPROBS.name, "needs logprobs", str(top))
    if off:
        shape, default_top = Shape.NONE, 0
    elif logprobs is True:
        shape, default_top = Shape.CONTENT, 0
    else:
        shape, default_top = Shape.LISTS, int(logprobs or 0)
    return Options(
        shape=shape,
        top=default_top if top is None else top,
        token_ids=RETURN_TOKEN_IDS.of(raw),
        raw_output=RAW_OUTPUT.of(raw),
        perf_metrics=PERF_METRICS.of(raw),
    )


def _request(raw: Mapping[str, object], options: Options, fresh_seed: int) -> CompletionRequest:
    ids = options.token_ids or options.raw_output
    last = ECHO_LAST.of(raw)
    prompts = PROMPT.required(raw)
    truncate = CONTEXT_EXCEEDED.of(raw) == "truncate"
    return CompletionRequest(
        model=MODEL.of(raw),
        prompts=prompts,
        max_tokens=_max_tokens(raw),
        n=N.of(raw),
        echo=ECHO.of(raw) if last is None else last > 0,
        echo_last=last or None,
        logprobs=None if options.shape is Shape.NONE else options.top,
        sampling=_sampling(raw, fresh_seed),
        stop=StopRules(STOP.of(raw)),
        stream=STREAM.of(raw),
        include_usage=True,  # page, usage: "For streaming responses, `usage` field is included in the very last response chunk"
        user=USER.of(raw),
        truncate=truncate,
        room=not truncate,  # page: "at most `context_window_length - prompt_length`": of a prompt of exactly the context that is 0
        token_ids=ids,
        prompt_ids=ids,
        guide=response_format(RESPONSE_FORMAT.of(raw)),
        cache_salt=_cache_salt(raw),
        reasoning=_reasoning(raw),
        prediction=_prediction(raw),
        spelled=tuple(_spelled(raw)),
        images=by_prompt(IMAGES.of(raw), prompts),
        repeated=options.raw_output and options.shape is not Shape.NONE,
    )


def _max_tokens(raw: Mapping[str, object]) -> int:
    most, alias = MAX_TOKENS.of(raw), MAX_COMPLETION_TOKENS.of(raw)
    if most is not None and alias is not None:
        raise BadRequest(MAX_COMPLETION_TOKENS.name, "must not be given together with max_tokens", shorten(alias))
    if alias is not None:
        return alias
    return _MAX_TOKENS_UNSET if most is None else most


def _sampling(raw: Mapping[str, object], fresh_seed: int) -> Sampling:
    target, rate = MIROSTAT_TARGET.of(raw), MIROSTAT_LR.of(raw)
    temperature = TEMPERATURE.of(raw)
    if target == 1:
        temperature = 0.0  # a perplexity of 1: no surprise at all
    return replace(
        sampling(temperature, TOP_P.of(raw), SEED.of(raw), fresh_seed, mirostat=target is not None),
        top_k=TOP_K.of(raw),
        min_probability=MIN_P.of(raw),
        typical_p=max(TYPICAL_P.of(raw), LEAST),
        typical_within=TYPICAL_P.of(raw) < 1,
        repetition_penalty=max(REPETITION_PENALTY.of(raw), LEAST),
        frequency_penalty=FREQUENCY_PENALTY.of(raw),
        presence_penalty=PRESENCE_PENALTY.of(raw),
        mirostat_target=0.0 if target is None else math.log2(target),
        mirostat_lr=MIROSTAT_LR.default if target is None else rate,
        logit_bias=LOGIT_BIAS.of(raw),
        ignore_eos=IGNORE_EOS.of(raw),
    )


def _cache_salt(raw: Mapping[str, object]) -> str:
    isolation, key = CACHE_ISOLATION.of(raw), CACHE_KEY.of(raw)
    if isolation:
        return f"isolation:{isolation}"
    return f"key:{key}" if key else ""


def _spelled(raw: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    if ECHO_LAST.of(raw) is not None:
        yield "echo", ECHO_LAST.name
    if MAX_COMPLETION_TOKENS.of(raw) is not None:
        yield "max_tokens", MAX_COMPLETION_TOKENS.name
    if TOP_LOGPROBS.of(raw) is not None:
        yield "logprobs", TOP_LOGPROBS.name
    if SPECULATION.of(raw):
        yield "prediction", SPECULATION.name


def _prediction(raw: Mapping[str, object]) -> Prompt:
    prediction, speculation = PREDICTION.of(raw), SPECULATION.of(raw)
    if prediction and speculation:
        raise BadRequest(PREDICTION.name, "must not be given together with speculation")
    return prediction or speculation


def _reasoning(raw: Mapping[str, object]) -> Reasoning | None:
    effort, thinking = REASONING_EFFORT.of(raw), THINKING.of(raw)
    if thinking is None:
        return None if effort is None else Reasoning(effort, REASONING_EFFORT.name, shorten(raw[REASONING_EFFORT.name]))
    if effort is not None:
        raise BadRequest(THINKING.name, "must not be given together with reasoning_effort")
    kind, budget = THINKING_TYPE.required(thinking), THINKING_BUDGET.of(thinking)
    if kind == "disabled":
        return Reasoning(0, THINKING.name)
    return Reasoning(at_most_high(budget or EFFORTS["medium"]), THINKING.name, shorten(thinking))


def _model_object(served: ServedModel) -> dict[str, object]:
    """As SDK 0.19 types it; it takes no null for a context length."""
    sees, context = served.images, served.context
    return model_entry(served, supports_chat=False, supports_image_input=sees, supports_tools=False, context_length=context)
