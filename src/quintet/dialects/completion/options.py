"""The options of llama-server's ``/completion``, which its ``/infill`` takes too, and the request that they make.

Page: llama.cpp, tools/server/README.md, "POST /completion", quoted as "page" below; "source": tools/server of the same tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from quintet.dialects.base import GREEDY_NOTE, LEAST, check_choices, or_off, sampling, switched_off
from quintet.dialects.completion.kinds import MOST_BIASES, Bias, Biases, Count
from quintet.dialects.completion.wire import Options
from quintet.dialects.constraints import BARE_GRAMMAR, BARE_SCHEMA, NOT_KEPT, constraint
from quintet.dialects.extensions import MirostatVersion
from quintet.dialects.fields import Boolean, Field, Integer, Number, Object, OneOf, Positive, Status, Stop, String
from quintet.dialects.lists import ListOf
from quintet.request import CompletionRequest, Dry, Prompt, Sampling, StopRules

MAX_CHOICES = 128
CHAIN = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""Source: the chain unless the request has ``samplers``. Its numbers are the defaults below."""

_MOST = 2**31 - 1
_DRY = Dry(range=64)
_NO = Status.NO_OP
_LATER = Status.LATER
_LACKS = "is not there in this server; leave it out"

MODEL = Field("model", String(256), "", note="Left out, it is the served model.", shown="the served model")
# Page: "When 0, no tokens will be generated but the prompt is evaluated into the cache." "-1 = infinity".
N_PREDICT: Field[int | None] = Field(
    "n_predict", Integer(-1, _MOST), None, note="-1: to the end of the context. 0: the prompt goes into the cache.", shown="`-1`"
)
# Source: `json_value(data, "n_predict", json_value(data, "max_completion_tokens", max_tokens))`.
MAX_COMPLETION_TOKENS: Field[int | None] = Field(
    "max_completion_tokens", Integer(-1, _MOST), None, note="Another name of `n_predict`, which counts if both are there.", shown="`-1`"
)
MAX_TOKENS = Field("max_tokens", Integer(-1, _MOST), -1, note="A third, which counts if neither is there.")
N_INDENT = Field("n_indent", Integer(0, _MOST), 0, note="Ends before a further line that begins with fewer blanks.")
N_CMPL: Field[int | None] = Field(
    "n_cmpl", Integer(1, MAX_CHOICES), None, note="Answers; over 1, the JSON body is an array of them.", shown="`1`"
)
N = Field("n", Integer(1, MAX_CHOICES), 1, note="Another name of `n_cmpl`.")
TOP_K = Field("top_k", Integer(0, _MOST), 40, note="0: off.")
TOP_P = Field("top_p", Number(0, 1), 0.95, note="Below 0.000001: greedy.")
MIN_P = Field("min_p", Number(0, 1), 0.05)
TEMPERATURE = Field("temperature", Number(0, 1000), 0.8, note=f"{GREEDY_NOTE} Comes before `top_p`, whatever the order.")
SEED = Field("seed", Integer(-1, 2**64 - 1), -1, note="Sample `j` draws with `seed + j`.", shown="drawn anew")
TYPICAL_P = Field("typical_p", Number(0, 1), 1.0, note="Below 0.000001 it counts as that.")
TOP_N_SIGMA = Field("top_n_sigma", Number(-1, 1000), -1.0, note="0 and below: off.")
XTC_PROBABILITY = Field("xtc_probability", Number(0, 1), 0.0)
XTC_THRESHOLD = Field("xtc_threshold", Number(0, 1), 0.1, note="Above 0.5: off.")
REPEAT_PENALTY = Field("repeat_penalty", Positive(2), 1.0, note="Over all of prompt and output.")
PRESENCE_PENALTY = Field("presence_penalty", Number(-2, 2), 0.0, note="Over all of the output.")
FREQUENCY_PENALTY = Field("frequency_penalty", Number(-2, 2), 0.0, note="Over all of the output.")
DRY_MULTIPLIER = Field("dry_multiplier", Number(0, 1000), _DRY.multiplier, note="0: off.")
DRY_BASE = Field("dry_base", Number(1, 1000), _DRY.base)
DRY_ALLOWED_LENGTH = Field("dry_allowed_length", Integer(1, _MOST), _DRY.allowed_length)
DRY_LAST_N = Field("dry_penalty_last_n", Integer(-1, _MOST), _DRY.range, note="-1: all.")
DRY_BREAKERS: Field[tuple[str, ...]] = Field(
    "dry_sequence_breakers", ListOf(String(64), 64), _DRY.breakers, note="`[]`: nothing breaks a run.", shown=r'`["\n", ":", "\"", "*"]`'
)
MIROSTAT = Field("mirostat", MirostatVersion(), 0)
MIROSTAT_TAU = Field("mirostat_tau", Positive(1000), 5.0)
MIROSTAT_ETA = Field("mirostat_eta", Number(0, 1000), 0.1)
IGNORE_EOS = Field("ignore_eos", Boolean(), False)
# Page, logit_bias: "[[15043,1.0]]"; "Setting the value to false [...] ensures that the token `Hello` is never produced. The tokens can
# also be represented as strings".
LOGIT_BIAS: Field[tuple[Bias, ...]] = Field(
    "logit_bias",
    Biases(),
    (),
    note=f"-100 and `false` ban. A text stands for all its tokens, and there may be {MOST_BIASES} different ones in all; an object's key "
    "that is a number is an id. A token's biases add up.",
)
N_PROBS = Field("n_probs", Integer(0, 20), 0, note="Log-probabilities are the model's own.")
# Source: "Use OpenAI API logprobs only if n_probs wasn't provided".
LOGPROBS = Field("logprobs", Count(20), 0, note="Another name of `n_probs`, which counts if it is not 0.")
GRAMMAR = replace(BARE_GRAMMAR, status=Status.DONE)
JSON_SCHEMA = replace(BARE_SCHEMA, status=Status.DONE)
RETURN_TOKENS = Field("return_tokens", Boolean(), False)
SAMPLERS: Field[tuple[str, ...]] = Field(
    "samplers",
    ListOf(OneOf((*CHAIN, "infill", "adaptive_p")), 64),
    CHAIN,
    note="Others are off; one named twice is there once. `infill`: see below.",
    shown="all",
)
STOP: Field[tuple[str, ...]] = Field("stop", Stop(32, 1024), ())
STREAM = Field("stream", Boolean(), False, note="Frames of `data:`, and no `[DONE]`.")
CACHE_PROMPT = Field("cache_prompt", Boolean(), True, note="`false`: nothing that was computed before is used.")
T_MAX_PREDICT = Field("t_max_predict_ms", Integer(-1, 2**53), -1, note="Ends with the first line break after so long. 0, -1: off.")
RESPONSE_FIELDS: Field[tuple[str, ...]] = Field(
    "response_fields", ListOf(String(256), 256), (), note="`a/b` is `b` of `a`, under that whole name."
)
# Source: "TODO: implement t_max_prompt_ms".
T_MAX_PROMPT = Field("t_max_prompt_ms", Integer(-1, 2**53), -1, _NO, note="As in llama-server.")
ID_SLOT = Field("id_slot", Integer(-1, _MOST), -1, _NO, note="There are no slots: any request finds all prefixes.")
REPEAT_LAST_N = Field("repeat_last_n", Integer(-1, _MOST), -1, _NO, note="0: no penalties. Else they look at everything.")
N_KEEP = Field("n_keep", Integer(-1, _MOST), -1, _NO, note="The context is never shifted.")
N_CACHE_REUSE = Field("n_cache_reuse", Integer(0, _MOST), 0, _NO)
LORA: Field[tuple[object, ...]] = Field(
    "lora",
    ListOf(Object(), 64),
    (),
    _LATER,
    note="`[]` is accepted.",
    refusal="must be left out or empty: `model` names an adapter",
)
DYNATEMP = Field("dynatemp_range", Number(0, 1000), 0.0, _LATER, refusal=_LACKS)
MIN_KEEP = Field("min_keep", Integer(0, _MOST), 0, _LATER, refusal=_LACKS)
POST_SAMPLING = Field("post_sampling_probs", Boolean(), False, _LATER, refusal=_LACKS)
ADAPTIVE = Field("adaptive_target", Number(-1e9, 1), -1.0, _LATER, refusal=_LACKS)

FIELDS: tuple[Field[Any], ...] = (
    *(MODEL, N_PREDICT, MAX_COMPLETION_TOKENS, MAX_TOKENS, N_INDENT, N_CMPL, N, TOP_K, TOP_P, MIN_P, TEMPERATURE, SEED, TYPICAL_P),
    *(
        TOP_N_SIGMA,
        XTC_PROBABILITY,
        XTC_THRESHOLD,
        REPEAT_PENALTY,
        PRESENCE_PENALTY,
        FREQUENCY_PENALTY,
        DRY_MULTIPLIER,
        DRY_BASE,
        DRY_ALLOWED_LENGTH,
        DRY_LAST_N,
    ),
    *(DRY_BREAKERS, MIROSTAT, MIROSTAT_TAU, MIROSTAT_ETA, IGNORE_EOS, LOGIT_BIAS, N_PROBS, LOGPROBS, GRAMMAR, JSON_SCHEMA, RETURN_TOKENS),
    *(SAMPLERS, STOP, STREAM, CACHE_PROMPT, T_MAX_PREDICT, RESPONSE_FIELDS),
    *(T_MAX_PROMPT, ID_SLOT, REPEAT_LAST_N, N_KEEP, N_CACHE_REUSE, LORA, DYNATEMP, MIN_KEEP, POST_SAMPLING, ADAPTIVE),
)
_NO_EFFECT = (T_MAX_PROMPT, ID_SLOT, N_KEEP, N_CACHE_REUSE)


def defaults() -> dict[str, object]:
    """The options and their defaults, for ``/props``."""
    shown = {field.name: field.default for field in FIELDS if field.status is Status.DONE and "." not in field.name}
    return shown | {"n_predict": -1, "max_completion_tokens": -1, "n_cmpl": 1, "seed": -1}


def n_predict_of(raw: Mapping[str, object]) -> int:
    """``n_predict`` under whichever of its names: -1 = to the end of the context."""
    for field in (N_PREDICT, MAX_COMPLETION_TOKENS):
        if (most := field.of(raw)) is not None:
            return most
    return MAX_TOKENS.of(raw)


def options_of(raw: Mapping[str, object], *, stream: bool) -> Options:
    """How the answer is written, and what is still to be tokenised of the options that both routes have."""
    return Options(
        n_predict=n_predict_of(raw),
        samplers=SAMPLERS.of(raw),
        fields=RESPONSE_FIELDS.of(raw),
        slot=max(ID_SLOT.of(raw), 0),
        tokens=RETURN_TOKENS.of(raw) or stream,
        biases=LOGIT_BIAS.of(raw),
    )


def unheeded(raw: Mapping[str, object], samplers: Sequence[str], request: CompletionRequest) -> tuple[str, ...]:
    """Fields of a body that have no effect here, or less than documented."""
    names = [REPEAT_LAST_N.name] if REPEAT_LAST_N.of(raw) > 0 else []
    names += [field.name for field in _NO_EFFECT if field.of(raw) > field.default]
    names += [name for name in switched_off(request) if raw.get(name) is not None]  # of defaults nobody need hear
    if "infill" in samplers and request.sampling.mirostat_target:  # that draws, and this takes the likeliest token
        names.append(MIROSTAT.name)
    # Source, common_sampler_init: each name adds a sampler to the chain. Here there is one of each.
    return (*names, *(f"samplers[{name}]" for name, times in Counter(samplers).items() if name == "infill" or times > 1))


def _read_all(raw: Mapping[str, object]) -> None:
    """Each field, also where another's value leaves it unused."""
    for field in FIELDS:
        if field is not ADAPTIVE or ADAPTIVE.kind.read(ADAPTIVE.name, raw.get(ADAPTIVE.name) or 0.0) >= 0:  # negative: off
            field.of(raw)


def request_of(raw: Mapping[str, object], prompts: tuple[Prompt, ...], fresh_seed: int) -> CompletionRequest:
    """The request of a body.

    Raises:
        BadRequest: an option is malformed or not there.
    """
    _read_all(raw)
    n_predict, n, n_probs = n_predict_of(raw), N_CMPL.of(raw) or N.of(raw), N_PROBS.of(raw) or LOGPROBS.of(raw)
    request = CompletionRequest(
        model=MODEL.of(raw),
        prompts=prompts,
        # To have the prompt in the cache it must be computed, which is done for a token's sake; the answer does not show it.
        max_tokens=None if n_predict < 0 else max(n_predict, 1),
        n=n,
        echo=False,
        logprobs=n_probs or None,
        sampling=_sampling(raw, SAMPLERS.of(raw), fresh_seed),
        stop=StopRules(STOP.of(raw), indent=N_INDENT.of(raw), seconds=max(T_MAX_PREDICT.of(raw) / 1000, 0.0)),
        stream=STREAM.of(raw),
        include_usage=True,
        user="",
        best_of=n,
        truncate=True,  # a prediction that reaches the end of the context ends there
        token_ids=True,  # how many tokens each choice has is part of the answer
        prompt_ids=True,  # and so is how many its prompt has
        guide=constraint({name: value for name, value in raw.items() if name in _GUIDED}, None),
        cache_salt="" if CACHE_PROMPT.of(raw) else f"once:{fresh_seed}",
        spelled=tuple(_spelled(raw)),
    )
    check_choices(request, MAX_CHOICES)
    return request


def _spelled(raw: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    yield "logprobs", LOGPROBS.name if LOGPROBS.of(raw) and not N_PROBS.of(raw) else N_PROBS.name
    yield "mirostat_target", MIROSTAT.name
    yield "repetition_penalty", REPEAT_PENALTY.name
    sent = (field.name for field in (N_PREDICT, MAX_COMPLETION_TOKENS, MAX_TOKENS) if raw.get(field.name) is not None)
    yield "max_tokens", next(sent, N_PREDICT.name)
    if raw.get(N_CMPL.name) is not None:
        yield "n", N_CMPL.name


_GUIDED = frozenset({GRAMMAR.name, JSON_SCHEMA.name}) | NOT_KEPT.keys()


def _sampling(raw: Mapping[str, object], samplers: Sequence[str], fresh_seed: int) -> Sampling:
    """The controls whose sampler is in the chain.

    ``infill`` keeps what has a fair share of the probability, mostly one token, or ends the text; here it is the likeliest token.
    """
    seed, mirostat = SEED.of(raw), MIROSTAT.of(raw)
    if REPEAT_LAST_N.of(raw) == 0:  # page: "Last n tokens to consider for penalizing repetition. [...] `0` is disabled"
        samplers = [name for name in samplers if name != "penalties"]

    def of(field: Field[float], sampler: str, off: float) -> float:
        """A control's value if its sampler is in the chain, or else the value that turns it off."""
        value = field.of(raw)
        return value if sampler in samplers else off

    base = sampling(
        0.0 if "infill" in samplers else of(TEMPERATURE, "temperature", 1.0),
        of(TOP_P, "top_p", 1.0),
        None if seed < 0 else seed,
        fresh_seed % 2**31,  # llama-server's are uint32; answers tell it, and ``seed + i`` of others
        mirostat=mirostat > 0,
    )
    return replace(
        base,
        top_k=TOP_K.of(raw) if "top_k" in samplers else 0,
        min_p=of(MIN_P, "min_p", 0.0),
        typical_p=max(of(TYPICAL_P, "typ_p", 1.0), LEAST),
        top_n_sigma=or_off(of(TOP_N_SIGMA, "top_n_sigma", 0.0)),
        xtc_probability=of(XTC_PROBABILITY, "xtc", 0.0),
        xtc_threshold=XTC_THRESHOLD.of(raw),
        repetition_penalty=max(of(REPEAT_PENALTY, "penalties", 1.0), LEAST),
        presence_penalty=of(PRESENCE_PENALTY, "penalties", 0.0),
        frequency_penalty=of(FREQUENCY_PENALTY, "penalties", 0.0),
        dry=Dry(of(DRY_MULTIPLIER, "dry", 0.0), DRY_BASE.of(raw), DRY_ALLOWED_LENGTH.of(raw), DRY_LAST_N.of(raw), DRY_BREAKERS.of(raw)),
        mirostat_target=max(MIROSTAT_TAU.of(raw), LEAST) if mirostat else 0.0,
        mirostat_lr=MIROSTAT_ETA.of(raw),
        ignore_eos=IGNORE_EOS.of(raw),
    )
