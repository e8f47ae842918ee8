"""Together. Page: https://docs.together.ai/reference/completions-1, quoted as "page" below; "SDK": together 3.x unless it says 1.x."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quintet.dialects.base import (
    GREEDY_NOTE,
    GREEDY_TOP_P_NOTE,
    LEAST,
    ErrorReply,
    Fault,
    Headers,
    Identity,
    Parsed,
    ServedModel,
    fault,
    sampling,
    switched_off,
)
from quintet.dialects.constraints import unknown_fields
from quintet.dialects.extensions import MIROSTAT, PREDICTION, Extensions
from quintet.dialects.fields import REQUIRED, Boolean, Field, Integer, LogitBias, Number, Stop, String
from quintet.dialects.json_guard import decode_object
from quintet.dialects.together import limits
from quintet.dialects.together.wire import Options, TogetherRenderer
from quintet.dialects.wire import encode, error_body
from quintet.errors import PromptTooLong
from quintet.quota import Meter
from quintet.request import CompletionRequest, Sampling, StopRules

MAX_TOKENS_UNSET = 512
"""The page names no default; SDK 1.x sends this one whenever its user gives none."""

MODEL = Field("model", String(256), "", note="Required on the page; left out, it is the served model.", shown="the served model")
# Page, prompt: "A string providing context for the model to complete." One string; its SDKs and litellm send nothing else.
PROMPT = Field("prompt", String(), "", note='`""`: the beginning of a new document.', shown=REQUIRED)
# Page, max_tokens: "The maximum number of tokens to generate."
MAX_TOKENS: Field[int | None] = Field(
    "max_tokens",
    Integer(0),
    None,
    note="Prompt and `max_tokens` together must fit the context; the default is lowered to fit.",
    shown=f"`{MAX_TOKENS_UNSET}`",
)
# Page, stop: "A list of string sequences that will truncate (stop) inference text output." Without the sequence, as "truncate" says.
STOP: Field[tuple[str, ...]] = Field("stop", Stop(64, 1024), (), note="The page has arrays only; one string is taken too.")
# Page, temperature: "A decimal number from 0-1 that determines the degree of randomness". Clients send more, and more has a meaning.
TEMPERATURE = Field("temperature", Number(0, 2), 1.0, note=GREEDY_NOTE)
TOP_P = Field("top_p", Number(0, 1), 1.0, note=GREEDY_TOP_P_NOTE)
# Page, top_k: "the maximum number of tokens to consider at each step", "format: int32"; 0 and -1 are what clients send for "all".
TOP_K = Field("top_k", Integer(-1, 2**31 - 1), 0, note="0 and -1: off.", shown="off")
# Page, repetition_penalty: "Higher values decrease repetition." One divides by it.
REPETITION_PENALTY = Field("repetition_penalty", Number(0, 2), 1.0, note="Over prompt and output. Below 0.000001 it counts as that.")
STREAM = Field("stream", Boolean(), False)
# Page, logprobs: "An integer between 0 and 20 of the top k tokens to return log probabilities for [...], instead of just the sampled
# token."
LOGPROBS: Field[int | None] = Field(
    "logprobs", Integer(0, 20), None, note="0: the chosen token only. A token that cannot occur has -9999.0.", shown="off"
)
# Page, echo: "If true, the response will contain the prompt. Can be used with `logprobs` to return prompt logprobs."
ECHO = Field("echo", Boolean(), False, note="In `prompt`, not in the choices' text.")
N = Field("n", Integer(1, 128), 1)
# Page, safety_model: "The name of the moderation model used to validate tokens."
SAFETY_MODEL: Field[str | None] = Field("safety_model", String(256), None, note="A model that is served for moderation.")
# Page, min_p: "A number between 0 and 1 that can be used as an alternative to top-p and top-k."
MIN_P = Field("min_p", Number(0, 1), 0.0)
# Page, presence_penalty and frequency_penalty: "A number between -2.0 and 2.0".
PRESENCE_PENALTY = Field("presence_penalty", Number(-2, 2), 0.0)
FREQUENCY_PENALTY = Field("frequency_penalty", Number(-2, 2), 0.0)
# Page, logit_bias: "Adjusts the likelihood of specific tokens"; no bounds. At 100 either way nothing is left to adjust.
LOGIT_BIAS: Field[tuple[tuple[int, float], ...]] = Field("logit_bias", LogitBias(1024), (), note="-100 bans, 100 forces.")
SEED: Field[int | None] = Field(
    "seed", Integer(-(2**63), 2**64 - 1), None, note="Taken modulo 2^64; sample `j` of a prompt draws with `seed + j`.", shown="drawn anew"
)

FIELDS: tuple[Field[Any], ...] = (
    *(PROMPT, MODEL, MAX_TOKENS, STOP, TEMPERATURE, TOP_P, TOP_K, REPETITION_PENALTY, STREAM, LOGPROBS, ECHO, N),
    *(SAFETY_MODEL, MIN_P, PRESENCE_PENALTY, FREQUENCY_PENALTY, LOGIT_BIAS, SEED),
)
"""Every field of the page, in its order."""
EXTENSIONS = Extensions(FIELDS)
_LISTS = ("OpenAI/", "AsyncOpenAI/")
KNOWN = (*FIELDS, *EXTENSIONS.fields)


class Together:
    """See ``Dialect``."""

    name = "together"

    def parse(self, body: bytes, fresh_seed: int) -> Parsed:
        raw = decode_object(body)
        logprobs = LOGPROBS.of(raw)
        request = _with_those_of_chunks(EXTENSIONS.apply(raw, _request(raw, logprobs, fresh_seed)))
        return Parsed(request, unknown_fields(KNOWN, raw), Options(logprobs), switched_off(request))

    def renderer(self, request: CompletionRequest, identity: Identity, options: object = None) -> TogetherRenderer:
        if not isinstance(options, Options):
            raise TypeError("options must come from the same dialect's parse")
        return TogetherRenderer(request, identity, options)

    def error(self, error: Exception) -> ErrorReply:
        known = _fault(error)
        return ErrorReply(known.status, known.headers, encode(error_body(known)))

    def limits(self, meters: Sequence[Meter], _over: bool) -> Headers:
        return limits.headers(meters)

    def models(self, served: Sequence[ServedModel]) -> bytes:
        """A bare array: SDK 1.x and 2.x refuse anything else."""
        return encode([_model_object(one) for one in served])

    def model(self, served: ServedModel) -> bytes:
        return encode(_model_object(served))


def for_agent(parsed: Parsed, agent: str) -> Parsed:
    """The same for a client of this ``User-Agent``: OpenAI's SDK reads a list of maps where Together's reads one map, and in chunks an
    object where Together's 1.x reads a number."""
    if isinstance(parsed.options, Options) and agent.startswith(_LISTS):
        return replace(parsed, options=replace(parsed.options, listed=True))
    return parsed


def _with_those_of_chunks(request: CompletionRequest) -> CompletionRequest:
    """Page, CompletionToken: every chunk has a token with its `logprob`, both required. What needs ``logprobs`` needs the client's own.

    The prompt is in no such chunk: page, echo: "Can be used with `logprobs` to return prompt logprobs", and so without them it has none.
    """
    if request.logprobs is not None or not request.stream:
        return request
    return replace(request, logprobs=0, echo_scored=False, spelled=(*request.spelled, ("logprobs", STREAM.name)))


def _request(raw: Mapping[str, object], logprobs: int | None, fresh_seed: int) -> CompletionRequest:
    most = MAX_TOKENS.of(raw)
    return CompletionRequest(
        model=MODEL.of(raw),
        prompts=(PROMPT.required(raw),),
        max_tokens=MAX_TOKENS_UNSET if most is None else most,
        n=N.of(raw),
        echo=ECHO.of(raw),
        logprobs=logprobs,
        sampling=_sampling(raw, fresh_seed),
        stop=StopRules(STOP.of(raw)),
        stream=STREAM.of(raw),
        include_usage=True,  # page, CompletionChunk: `usage` is required, and null until the last
        user="",
        truncate=most is None,
        safety_model=SAFETY_MODEL.of(raw),
    )


def _sampling(raw: Mapping[str, object], fresh_seed: int) -> Sampling:
    return replace(
        sampling(TEMPERATURE.of(raw), TOP_P.of(raw), SEED.of(raw), fresh_seed, mirostat=MIROSTAT.of(raw) > 0),
        top_k=max(TOP_K.of(raw), 0),
        min_p=MIN_P.of(raw),
        repetition_penalty=max(REPETITION_PENALTY.of(raw), LEAST),
        frequency_penalty=FREQUENCY_PENALTY.of(raw),
        presence_penalty=PRESENCE_PENALTY.of(raw),
        logit_bias=LOGIT_BIAS.of(raw),
    )


def _fault(error: Exception) -> Fault:
    known = limits.worded(fault(error), error)
    # https://docs.together.ai/docs/error-codes: 403 is "Bad Request: input token count + max_tokens parameter exceeds the context". A
    # prediction is neither.
    return replace(known, status=403) if isinstance(error, PromptTooLong) and error.param != PREDICTION.name else known


def _model_object(served: ServedModel) -> dict[str, object]:
    """SDK 1.x requires the prices, HELM reads the stop strings."""
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "type": "moderation" if served.moderation else "language",  # the API's own words
        "display_name": served.name,
        "organization": "quintet",
        "context_length": served.context,
        "config": {"stop": []},
        "pricing": dict.fromkeys(("hourly", "input", "output", "base", "finetune"), 0),
    }
