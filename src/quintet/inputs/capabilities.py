"""What an engine can do, in full: what it lacks is refused above it, by name, and never silently left out. Plain code over values.

Not here is what is done above every engine and needs nothing of it: stop strings, best of many by score, truncation, detokenising.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from quintet.inputs.images.expansion import ProcessorTraits
from quintet.inputs.images.layout import ImageTraits
from quintet.request import GuideKind, Sampling


class Control(enum.Enum):
    """A control of sampling; the value is the field of ``Sampling`` that turns it on."""

    TEMPERATURE = "temperature"  # other than 0, which is greedy, and 1
    TOP_P = "top_p"
    SEED = "seeded"  # the same seed gives the same text again
    TOP_K = "top_k"
    MIN_P = "min_p"
    MIN_PROBABILITY = "min_probability"
    TYPICAL_P = "typical_p"
    TOP_N_SIGMA = "top_n_sigma"
    XTC = "xtc_probability"
    REPETITION_PENALTY = "repetition_penalty"
    FREQUENCY_PENALTY = "frequency_penalty"
    PRESENCE_PENALTY = "presence_penalty"
    DRY = "dry"
    MIROSTAT = "mirostat_target"
    LOGIT_BIAS = "logit_bias"
    ALLOWED_TOKEN_IDS = "allowed_token_ids"
    BAD_WORDS = "bad_words"
    MIN_TOKENS = "min_tokens"
    IGNORE_EOS = "ignore_eos"
    STOP_TOKEN_IDS = "stop_token_ids"  # fill in the middle needs it too: a middle ends at the model's own tokens for it

    @property
    def param(self) -> str:
        """The request's field, for errors."""
        return {Control.SEED: "seed", Control.DRY: "dry_multiplier", Control.MIN_PROBABILITY: "min_p"}.get(self, self.value)

    def turned_on(self, sampling: Sampling) -> bool:
        """A request asks for it: its field is not at the value that turns the control off."""
        match self:
            case Control.TEMPERATURE:
                return sampling.temperature not in (0.0, 1.0)
            case Control.DRY:
                return sampling.dry.multiplier != 0.0
            case _:
                return bool(getattr(sampling, self.value) != getattr(_OFF, self.value))


_OFF = Sampling(temperature=1.0, top_p=1.0, seed=0)


class Feature(enum.Enum):
    """What an engine has beside controls of sampling."""

    LOGPROBS = enum.auto()  # of generated tokens
    ECHO = enum.auto()  # the prompt's tokens come back as events
    PROMPT_LOGPROBS = enum.auto()  # with log-probabilities
    CHOSEN_LOGPROBS = enum.auto()  # log-probabilities of given tokens, beside the generated one's
    THINKING_BUDGET = enum.auto()  # thinking is ended after so many tokens


@dataclass(frozen=True, slots=True)
class Supported:
    """Which controls, features and guides an engine has.

    Args:
        guides: the kinds that it keeps to.
    """

    controls: frozenset[Control]
    features: frozenset[Feature]
    guides: frozenset[GuideKind]


EVERYTHING = Supported(frozenset(Control), frozenset(Feature), frozenset(GuideKind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the engine behind the boundary can do; requests are checked against it above the boundary.

    Args:
        model: the public model name.
        context: most tokens of prompt plus completion.
        vocab: width of the logits; every token id is below it.
        pieces: the bytes of each token id (empty for control tokens).
        max_logprobs: most alternatives per token.
        max_sequences: most sequences of one request (prompts × n).
        fingerprint: equal fingerprint and seed mean equal bytes.
        supported: what of all that there is it has.
        images: how it sees images; ``None`` = it does not.
    """

    model: str
    context: int
    vocab: int
    pieces: Sequence[bytes]
    max_logprobs: int
    max_sequences: int
    fingerprint: str
    supported: Supported
    images: ImageTraits | ProcessorTraits | None = None
