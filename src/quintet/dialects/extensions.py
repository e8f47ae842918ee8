"""Fields that other servers have and whose users rely on them, taken in every dialect; what a provider has itself stays the provider's.

Here are the controls of sampling; constraints of the output are in ``constraints``, all else is in ``vllm``.

Names, types and defaults are vLLM's ("vLLM": its ``SamplingParams``) or llama-server's ("llama": tools/server/README.md, "POST
/completion"). What each does: docs/sampling.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quintet.dialects import constraints, vllm
from quintet.dialects.base import LEAST, or_off
from quintet.dialects.fields import MAX_TOKEN_ID, Boolean, Field, Integer, Number, Positive, Status, String, T
from quintet.dialects.lists import ListOf
from quintet.dialects.predictions import Predicted
from quintet.errors import BadRequest, shorten
from quintet.request import CompletionRequest, Dry, Reasoning, Sampling

_LARGEST = 2**31 - 1
_DRY = Dry()
_EXTENSION = Status.EXTENSION


@dataclass(frozen=True, slots=True)
class MirostatVersion:
    """0 or 2: version 1 is the same with an estimate in place of what version 2 measures."""

    type: str = "integer"
    range: str = "0 or 2"

    def read(self, name: str, value: object) -> int:
        version = Integer(0, 2).read(name, value)
        if version == 1:
            raise BadRequest(name, "must be 0 or 2", shorten(value))
        return version


# vLLM, top_k: "Set to 0 (or -1) to consider all tokens."
TOP_K = Field("top_k", Integer(-1, _LARGEST), 0, _EXTENSION, "0 and -1: off.", "off")
# vLLM, min_p: "Must be in [0, 1]. Set to 0 to disable this."
MIN_P = Field("min_p", Number(0, 1), 0.0, _EXTENSION)
# llama, typical_p: "Default: `1.0`, which is disabled."
TYPICAL_P = Field("typical_p", Number(0, 1), 1.0, _EXTENSION, "Below 0.000001 it counts as that.")
# llama-server's default for top_n_sigma is -1, which is off.
TOP_N_SIGMA = Field("top_n_sigma", Number(-1, 1000), 0.0, _EXTENSION, "0 and below: off.", "off")
# llama, xtc_probability: "Default: `0.0`, which is disabled"; xtc_threshold: "Default: `0.1` (> `0.5` disables XTC)".
XTC_PROBABILITY = Field("xtc_probability", Number(0, 1), 0.0, _EXTENSION)
XTC_THRESHOLD = Field("xtc_threshold", Number(0, 1), 0.1, _EXTENSION, "Above 0.5: off.")
# vLLM, repetition_penalty: "based on whether they appear in the prompt and the generated text so far". One divides by it.
REPETITION_PENALTY = Field("repetition_penalty", Positive(2), 1.0, _EXTENSION, "Over prompt and output.")
# llama, dry_multiplier: "Default: `0.0`, which is disabled"; dry_base: "Default: `1.75`"; dry_allowed_length: "Tokens that extend
# repetition beyond this receive exponentially increasing penalty: multiplier * base ^ (length of repeating sequence before token -
# allowed length). Default: `2`".
DRY_MULTIPLIER = Field("dry_multiplier", Number(0, 1000), _DRY.multiplier, _EXTENSION, "0: off.")
DRY_BASE = Field("dry_base", Number(1, 1000), _DRY.base, _EXTENSION)
DRY_ALLOWED_LENGTH = Field("dry_allowed_length", Integer(1, _LARGEST), _DRY.allowed_length, _EXTENSION)
# llama, dry_penalty_last_n: "Default: `-1`, where `0` is disabled and `-1` is context size."
DRY_LAST_N = Field("dry_penalty_last_n", Integer(-1, _LARGEST), _DRY.range, _EXTENSION, "-1: all. 0: none, so off.")
# llama, dry_sequence_breakers: "Only a JSON array of strings is accepted."
DRY_BREAKERS: Field[tuple[str, ...]] = Field(
    "dry_sequence_breakers", ListOf(String(64), 64), _DRY.breakers, _EXTENSION, "`[]`: nothing breaks a run.", r'`["\n", ":", "\"", "*"]`'
)
# llama, mirostat: "Default: `0`, where `0` is disabled, `1` is Mirostat, and `2` is Mirostat 2.0"; mirostat_tau: "target entropy [...].
# Default: `5.0`"; mirostat_eta: "learning rate [...]. Default: `0.1`".
MIROSTAT = Field("mirostat", MirostatVersion(), 0, _EXTENSION)
MIROSTAT_TAU = Field("mirostat_tau", Positive(1000), 5.0, _EXTENSION, "Surprise in bits. Without `mirostat` it has no effect.")
MIROSTAT_ETA = Field("mirostat_eta", Number(0, 1000), 0.1, _EXTENSION, "Without `mirostat` it has no effect.")
# vLLM, min_tokens: "Minimum number of tokens to generate per output sequence before EOS or `stop_token_ids` can be generated".
MIN_TOKENS = Field("min_tokens", Integer(0, _LARGEST), 0, _EXTENSION, "At most `max_tokens`. Stop strings count from then on too.")
IGNORE_EOS = Field("ignore_eos", Boolean(), False, _EXTENSION)
# vLLM, stop_token_ids: "Token IDs that stop the generation when they are generated. The returned output will contain the stop tokens
# unless the stop tokens are special tokens." Here it never does, as it never contains stop strings.
STOP_TOKEN_IDS: Field[tuple[int, ...]] = Field(
    "stop_token_ids", ListOf(Integer(0, MAX_TOKEN_ID), 1024), (), _EXTENSION, "Such a token has no text."
)
# vLLM, allowed_token_ids: "only retains scores for the given token ids"; an empty list is an error there too.
ALLOWED_TOKEN_IDS: Field[tuple[int, ...]] = Field("allowed_token_ids", ListOf(Integer(0, MAX_TOKEN_ID), 1024, 1), (), _EXTENSION)
# vLLM, bad_words: "only the last token of a corresponding token sequence is not allowed when the next generated token
# can complete the sequence."
BAD_WORDS: Field[tuple[str, ...]] = Field("bad_words", ListOf(String(256), 256), (), _EXTENSION)
# vLLM, thinking_token_budget: "Maximum number of tokens allowed for thinking operations"; "a non-negative integer or -1 for unlimited".
THINKING_BUDGET: Field[int | None] = Field(
    "thinking_token_budget", Integer(-1, _LARGEST), None, _EXTENSION, "-1: no limit. Above 0 it is a 400 on a model that does not reason."
)

# OpenAI, chat completions, prediction: "Static predicted output content"; its page of completions has what became of one, in the usage.
PREDICTION = Field("prediction", Predicted(), "", _EXTENSION, "What the text may be: drafted, and never trusted.")

_CONTROLS: tuple[Field[Any], ...] = (
    *(TOP_K, MIN_P, TYPICAL_P, TOP_N_SIGMA, XTC_PROBABILITY, XTC_THRESHOLD, REPETITION_PENALTY),
    *(DRY_MULTIPLIER, DRY_BASE, DRY_ALLOWED_LENGTH, DRY_LAST_N, DRY_BREAKERS, MIROSTAT, MIROSTAT_TAU, MIROSTAT_ETA),
    *(MIN_TOKENS, IGNORE_EOS, STOP_TOKEN_IDS, ALLOWED_TOKEN_IDS, BAD_WORDS, THINKING_BUDGET, PREDICTION),
)
FIELDS = (*_CONTROLS, *constraints.FIELDS, *vllm.FIELDS)

_OTHER_NAMES = {
    MIROSTAT.name: "mirostat_target",
    MIROSTAT_TAU.name: "mirostat_target",
    MIROSTAT_ETA.name: "mirostat_lr",
    THINKING_BUDGET.name: "reasoning_effort",
}
"""A field -> another name for the same control; a provider that has that one does not get this one too."""


class Extensions:
    """What a dialect takes beyond its provider's fields.

    Args:
        own: the provider's fields.
        stop_included: see ``vllm.documented``.
    """

    def __init__(self, own: Sequence[Field[Any]], *, stop_included: bool = False) -> None:
        names = {field.name for field in own}
        every = (*_CONTROLS, *constraints.FIELDS, *vllm.documented(names, stop_included=stop_included))
        self.fields = tuple(field for field in every if field.name not in names and _OTHER_NAMES.get(field.name) not in names)
        self._names = frozenset(field.name for field in self.fields) | (constraints.NOT_KEPT.keys() - names)

    def apply(self, raw: Mapping[str, object], request: CompletionRequest) -> CompletionRequest:
        """``request`` with the extensions of its body.

        Raises:
            BadRequest: one of them has a wrong type or is out of range.
        """
        options = vllm.STREAM_OPTIONS.of(raw)
        if self._names.isdisjoint(raw) and vllm.CONTINUOUS_USAGE.name.rpartition(".")[2] not in options:
            return request
        given = {name: value for name, value in raw.items() if name in self._names}
        budget = THINKING_BUDGET.of(given)
        reasoning = request.reasoning if budget is None or budget < 0 else Reasoning(budget, THINKING_BUDGET.name)
        spelled = (("mirostat_target", MIROSTAT.name),) if MIROSTAT.of(given) else ()
        extended = replace(
            request,
            sampling=self._sampling(given, request.sampling),
            reasoning=reasoning,
            prediction=PREDICTION.of(given) or request.prediction,
            guide=constraints.constraint(given, request.guide),
            spelled=(*request.spelled, *spelled),
        )
        return vllm.applied(given, options, extended)

    def _sampling(self, given: Mapping[str, object], own: Sampling) -> Sampling:
        def of(field: Field[T], current: T) -> T:
            """A control's value, unless the provider has it itself, which has set it then."""
            return field.of(given) if field.name in self._names else current

        tau, eta = MIROSTAT_TAU.of(given), MIROSTAT_ETA.of(given)
        mirostat = MIROSTAT.of(given)
        return replace(
            own,
            top_k=max(of(TOP_K, own.top_k), 0),
            min_p=of(MIN_P, own.min_p),
            typical_p=max(of(TYPICAL_P, own.typical_p), LEAST),
            top_n_sigma=or_off(TOP_N_SIGMA.of(given)),
            xtc_probability=XTC_PROBABILITY.of(given),
            xtc_threshold=XTC_THRESHOLD.of(given),
            repetition_penalty=max(of(REPETITION_PENALTY, own.repetition_penalty), LEAST),
            dry=Dry(
                DRY_MULTIPLIER.of(given),
                DRY_BASE.of(given),
                DRY_ALLOWED_LENGTH.of(given),
                DRY_LAST_N.of(given),
                DRY_BREAKERS.of(given),
            ),
            mirostat_target=max(tau, LEAST) if mirostat else own.mirostat_target,
            mirostat_lr=eta if mirostat else own.mirostat_lr,
            min_tokens=of(MIN_TOKENS, own.min_tokens),
            ignore_eos=of(IGNORE_EOS, own.ignore_eos),
            stop_token_ids=STOP_TOKEN_IDS.of(given),
            allowed_token_ids=ALLOWED_TOKEN_IDS.of(given),
            bad_words=BAD_WORDS.of(given),
        )
