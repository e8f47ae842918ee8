"""vLLM's fields that are no controls of sampling: what an answer tells beyond the page, how a prompt is cut, how a choice is searched for.

Taken in every dialect, with vLLM's names, types, defaults and rules (its ``entrypoints/openai/completion/protocol.py``, quoted).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quintet.dialects.fields import MAX_TOKEN_ID, Boolean, Field, Integer, Number, Object, OneOf, Status, String
from quintet.dialects.lists import ListOf
from quintet.errors import BadRequest, shorten
from quintet.request import Beams, CompletionRequest, Cut, Shown

_EXTENSION = Status.EXTENSION


@dataclass(frozen=True, slots=True)
class Early:
    """``true``, ``false`` or ``"never"``; read as whether a search ends early."""

    type: str = "boolean | string"
    range: str = "or `never`"

    def read(self, name: str, value: object) -> bool:
        if value == "never":
            return False
        if isinstance(value, str):
            raise BadRequest(name, "must be true, false or never", shorten(value))
        return Boolean().read(name, value)


# "If specified, the result will include token IDs alongside the generated text."
RETURN_TOKEN_IDS = Field("return_token_ids", Boolean(), False, _EXTENSION, "`prompt_token_ids` and `token_ids` of each choice.")
# "tokens are represented as strings of the form 'token_id:{token_id}'".
AS_IDS = Field("return_tokens_as_token_ids", Boolean(), False, _EXTENSION, "In lists of log-probabilities.")
# "`prompt_logprobs` are not available when `stream=True`."
PROMPT_LOGPROBS: Field[int | None] = Field("prompt_logprobs", Integer(0, 20), None, _EXTENSION, "Not with `stream`.", "off")
# "Specific vocab token IDs to return logprobs for at each generated position, in addition to the sampled token. [...] When set, this
# explicit token selection takes precedence over the natural top-k selected by `logprobs`. Requires `logprobs` to be set."
LOGPROB_IDS: Field[tuple[int, ...]] = Field(
    "logprob_token_ids", ListOf(Integer(0, MAX_TOKEN_ID), 128, 1), (), _EXTENSION, "In place of the likeliest; needs `logprobs`."
)
TRUNCATE: Field[int | None] = Field(
    "truncate_prompt_tokens", Integer(-1, 2**31 - 1), None, _EXTENSION, "-1: what fits beside `max_tokens`. Not with `echo`.", "off"
)
# "'right' keeps the first N tokens. 'left' keeps the last N tokens."
TRUNCATION_SIDE = Field("truncation_side", OneOf(("left", "right")), "left", _EXTENSION, "Which end is cut off.")
# "If true (the default), special tokens (e.g. BOS) will be added to the prompt."
ADD_SPECIAL = Field("add_special_tokens", Boolean(), True, _EXTENSION, "`false`: no BOS before a text, and no EOS behind it.")
INCLUDE_STOP: Field[bool | None] = Field("include_stop_str_in_output", Boolean(), None, _EXTENSION, shown="`false`")
# "the prefix cache will be salted with the provided string".
CACHE_SALT = Field("cache_salt", String(1024), "", _EXTENSION, "Cached prefixes are shared only within equal salts.")
STREAM_OPTIONS: Field[dict[str, object]] = Field("stream_options", Object(), {}, _EXTENSION)
CONTINUOUS_USAGE = Field("stream_options.continuous_usage_stats", Boolean(), False, _EXTENSION, "Every chunk has the usage so far.")
USE_BEAM_SEARCH = Field("use_beam_search", Boolean(), False, _EXTENSION, "The `n` best texts, not with `stream`.")
LENGTH_PENALTY = Field("length_penalty", Number(-50, 50), 1.0, _EXTENSION, "Needs `use_beam_search`.")
# Of vLLM's SamplingParams before 0.7: "True, where the generation stops as soon as there are best_of complete candidates"; now, and with
# "never", it goes on to max_tokens. `False` stopped "when it's very unlikely to find better candidates", and goes on here too.
EARLY_STOPPING = Field("early_stopping", Early(), False, _EXTENSION, "`true`: ends with `n` complete texts. Needs `use_beam_search`.")

_PARTS = ("echo_last", "suffix")
"""With one of these a part is all that the engine tells of a prompt, so ``PROMPT_LOGPROBS`` cannot be had."""

FIELDS: tuple[Field[Any], ...] = (
    *(RETURN_TOKEN_IDS, AS_IDS, PROMPT_LOGPROBS, LOGPROB_IDS, TRUNCATE, TRUNCATION_SIDE, ADD_SPECIAL, INCLUDE_STOP, CACHE_SALT),
    *(STREAM_OPTIONS, CONTINUOUS_USAGE, USE_BEAM_SEARCH, LENGTH_PENALTY, EARLY_STOPPING),
)


def documented(own: Container[str], *, stop_included: bool) -> tuple[Field[Any], ...]:
    """``FIELDS`` as the docs have them beside a provider's own.

    Args:
        own: names of its fields.
        stop_included: its texts end with the stop string, whoever does not ask for that.
    """
    others = "".join(f" or `{name}`" for name in _PARTS if name in own)
    told: dict[str, Field[Any]] = {PROMPT_LOGPROBS.name: replace(PROMPT_LOGPROBS, note=f"Not with `stream`{others}.")}
    if stop_included:
        told[INCLUDE_STOP.name] = replace(INCLUDE_STOP, shown="`true`")
    return tuple(told.get(field.name, field) for field in FIELDS)


def applied(given: Mapping[str, object], options: Mapping[str, object], request: CompletionRequest) -> CompletionRequest:
    """``request`` with what these fields ask for.

    Args:
        given: of the body those that its provider does not have itself.
        options: its ``stream_options``, whoever has them.

    Raises:
        BadRequest: one of them is malformed, or does not go with another.
    """
    include, salt = INCLUDE_STOP.of(given), CACHE_SALT.of(given)
    ids = tuple(dict.fromkeys(LOGPROB_IDS.of(given)))  # one entry for a token, however often it is asked for
    if ids and request.logprobs is None:
        raise BadRequest(LOGPROB_IDS.name, "needs logprobs")
    return replace(
        request,
        stop=request.stop if include is None else replace(request.stop, include=include),
        # With its length, as both may hold anything: no two pairs are the same.
        cache_salt=f"vllm:{len(salt)}:{salt}/{request.cache_salt}" if salt else request.cache_salt,
        logprob_ids=ids,
        beams=_beams(given),
        cut=_cut(given, request),
        bare=_bare(given, request),
        shown=_shown(given, CONTINUOUS_USAGE.of(options), request),
    )


def _beams(given: Mapping[str, object]) -> Beams | None:
    penalty, early = LENGTH_PENALTY.of(given), EARLY_STOPPING.of(given)
    if USE_BEAM_SEARCH.of(given):
        return Beams(penalty, early)
    for name, there in ((LENGTH_PENALTY.name, penalty != LENGTH_PENALTY.default), (EARLY_STOPPING.name, early)):
        if there:
            raise BadRequest(name, "needs use_beam_search: true")
    return None


def _cut(given: Mapping[str, object], request: CompletionRequest) -> Cut | None:
    most, side = TRUNCATE.of(given), TRUNCATION_SIDE.of(given)
    if most is None:
        return None
    for name, there in ((dict(request.spelled).get("echo", "echo"), request.echo), ("images", any(request.images))):
        if there:
            raise BadRequest(TRUNCATE.name, f"cannot be combined with {name}")
    return Cut(None if most < 0 else most, left=side == "left")


def _bare(given: Mapping[str, object], request: CompletionRequest) -> bool:
    if ADD_SPECIAL.of(given):
        return False
    for name, there in (("suffix", bool(request.suffix)), ("images", any(request.images))):
        if there:  # their prompts are put together as the model was trained on, with its BOS
            raise BadRequest(ADD_SPECIAL.name, f"cannot be false with {name}")
    return True


def _shown(given: Mapping[str, object], usage: bool, request: CompletionRequest) -> Shown | None:
    scores = PROMPT_LOGPROBS.of(given)
    if scores is not None and request.stream:
        raise BadRequest(PROMPT_LOGPROBS.name, "cannot be combined with stream: true")
    for name, there in zip(_PARTS, (request.echo_last is not None, bool(request.suffix)), strict=True):
        if scores is not None and there:
            raise BadRequest(PROMPT_LOGPROBS.name, f"cannot be combined with {name}")
    shown = Shown(RETURN_TOKEN_IDS.of(given), AS_IDS.of(given), scores, usage and request.stream and request.include_usage)
    # Which token, or string, ended a choice is told to those who ask for what their provider does not have, be it of streams only.
    named = bool(request.sampling.stop_token_ids or LOGPROB_IDS.of(given) or usage)
    told = shown != Shown() or named or INCLUDE_STOP.of(given) is not None
    return shown if told else None
