"""The sampling controls of a request, checked and resolved for the core. Plain code over values.

Whatever passes here, ``core.Samplers`` takes: a control that the core refused would fail a whole step, neighbours included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from quintet.errors import BadRequest, shorten
from quintet.request import Dry, Sampling

BAN = -100.0
"""A bias that bans."""

_LARGEST = 2**31 - 1
_HUGE = 1e6  # far beyond any use, and safe in single precision
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, _HUGE),
    "top_p": (0, 1),
    "seed": (0, 2**64 - 1),
    "top_k": (0, _LARGEST),
    "min_p": (0, 1),
    "min_probability": (0, 1),
    "typical_p": (0, 1),
    "top_n_sigma": (0, _HUGE),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "repetition_penalty": (1e-6, _HUGE),
    "frequency_penalty": (-_HUGE, _HUGE),
    "presence_penalty": (-_HUGE, _HUGE),
    "mirostat_target": (0, _HUGE),
    "mirostat_lr": (0, _HUGE),
    "min_tokens": (-1, _LARGEST),
}
_DRY_RANGES: dict[str, tuple[float, float]] = {
    "multiplier": (0, _HUGE),
    "base": (1, _HUGE),
    "allowed_length": (1, _LARGEST),
    "range": (-1, _LARGEST),
}

Words = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Resolved:
    """Controls that the core takes.

    Args:
        bad_words: as token sequences; none may come about in the output.
    """

    sampling: Sampling
    bad_words: Words = ()


def word_forms(sampling: Sampling) -> list[str]:
    """What must be tokenised of ``bad_words``: each as it goes on a word and as it begins one, like vLLM's ``bad_words``."""
    return [form for word in sampling.bad_words for form in (word.lstrip(" "), f" {word.lstrip(' ')}")]


def resolve_sampling(sampling: Sampling, limits: Limits, encoded: Mapping[str, Sequence[int]], vocab: int) -> Resolved:
    """Check the controls; fill in ``min_tokens`` and tokenise ``bad_words``.

    Args:
        encoded: token ids of each of ``word_forms(sampling)``.

    Raises:
        BadRequest: a number or an id out of range, or nothing is left to draw.
    """
    _check_numbers(sampling, _RANGES, "")
    _check_numbers(sampling.dry, _DRY_RANGES, "dry_")
    if "" in sampling.dry.breakers:
        raise BadRequest("dry_sequence_breakers", "must not hold an empty string")
    _check_ids("logit_bias", (token for token, _ in sampling.logit_bias), vocab)
    _check_ids("allowed_token_ids", sampling.allowed_token_ids, vocab)
    _check_ids("stop_token_ids", sampling.stop_token_ids, vocab)
    for token, bias in sampling.logit_bias:
        if not BAN <= bias <= -BAN:
            raise BadRequest("logit_bias", f"must be from {BAN:g} to {-BAN:g} for token {token}", shorten(bias))
    words = _words(sampling, encoded)
    _check_something_left(sampling, words, vocab)
    return Resolved(replace(sampling, min_tokens=limits.resolve(sampling.min_tokens)), words)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an output may be.

    Args:
        most: tokens.
        asked: before ``most`` was lowered to what the context leaves, as was agreed to; else the same.
    """

    most: int
    asked: int

    def resolve(self, min_tokens: int) -> int:
        """``min_tokens`` as a number, lowered likewise; -1 is the end of the context."""
        if min_tokens > self.asked:
            raise BadRequest("min_tokens", f"must be at most {self.asked}, the most tokens of this completion", str(min_tokens))
        return self.most if min_tokens < 0 else min(min_tokens, self.most)


def _check_numbers(values: Sampling | Dry, ranges: Mapping[str, tuple[float, float]], prefix: str) -> None:
    for name, (low, high) in ranges.items():
        value = getattr(values, name)
        if not low <= value <= high:  # false for NaN
            raise BadRequest(prefix + name, f"must be from {low:g} to {high:g}", shorten(value))


def _check_ids(name: str, ids: Iterable[int], vocab: int) -> None:
    for token in ids:
        if not 0 <= token < vocab:
            raise BadRequest(name, f"token ids must be from 0 to {vocab - 1}", shorten(token))


def _words(sampling: Sampling, encoded: Mapping[str, Sequence[int]]) -> Words:
    if "" in (word.strip(" ") for word in sampling.bad_words):
        raise BadRequest("bad_words", "must not hold an empty string")
    return tuple(dict.fromkeys(tuple(encoded[form]) for form in word_forms(sampling) if encoded[form]))


def _check_something_left(sampling: Sampling, words: Words, vocab: int) -> None:
    """What can be known beforehand; the core tells the rest, as words and guides ban by what came before."""
    banned = {token for token, bias in sampling.logit_bias if bias <= BAN}
    name = "logit_bias" if banned else "bad_words"
    banned |= {word[0] for word in words if len(word) == 1}
    if banned and (banned.issuperset(sampling.allowed_token_ids) if sampling.allowed_token_ids else len(banned) == vocab):
        raise BadRequest(name, "bans every token that could be drawn")
