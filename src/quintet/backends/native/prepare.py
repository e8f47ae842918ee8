"""From specs to sequences that can run: every rule a prompt can break, checked before anything starts. Plain code over values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from hashlib import blake2b

from quintet.backends.base import Capabilities, PreparedSequence, SequenceSpec
from quintet.errors import BadRequest, PromptTooLong, Unsupported, shorten
from quintet.request import Prompt, Sampling

OFFERED = frozenset(
    {"prompt", "max_tokens", "sampling", "logprobs", "echo", "echo_last", "truncate", "cache_salt"}  # of SequenceSpec
    | {"temperature", "top_p", "seed"}  # of Sampling
)
"""Fields of ``SequenceSpec`` and ``Sampling`` that this engine implements; the others are refused unless they are off."""


def texts(specs: Sequence[SequenceSpec]) -> list[str]:
    """The distinct texts among the prompts."""
    return list(dict.fromkeys(spec.prompt for spec in specs if isinstance(spec.prompt, str)))


def resolve(
    specs: Sequence[SequenceSpec], encoded: Mapping[str, Sequence[int]], capabilities: Capabilities, separator: int | None
) -> tuple[PreparedSequence, ...]:
    """Check each spec and give it its tokens and ``max_tokens``.

    Args:
        encoded: token ids of each of ``texts(specs)``.
        separator: stands for a prompt without tokens; ``None`` = such a prompt is refused.

    Raises:
        BadRequest: a token id out of range, an empty prompt, too many sequences or alternatives.
        Unsupported: a field that is not in ``OFFERED``.
        PromptTooLong: a prompt, or a prompt and ``max_tokens``, exceed the context.
    """
    if len(specs) > capabilities.max_sequences:
        raise BadRequest("prompt", f"must give at most {capabilities.max_sequences} choices (prompts times n)", str(len(specs)))
    names = _names(specs)
    tokens: dict[Prompt, tuple[int, ...]] = {}
    sequences = []
    for spec, name in zip(specs, names, strict=True):
        _refuse_unoffered(spec)
        _refuse_unoffered(spec.sampling)
        if spec.prompt not in tokens:
            ids = encoded[spec.prompt] if isinstance(spec.prompt, str) else spec.prompt
            tokens[spec.prompt] = _checked(tuple(ids), name, capabilities.vocab, separator)
        sequences.append(_sequence(spec, tokens[spec.prompt], name, capabilities))
    return tuple(sequences)


def _names(specs: Sequence[SequenceSpec]) -> list[str]:
    """``prompt``, or ``prompt[i]`` where there are several; samples of one prompt hold the same object."""
    number, numbers = -1, []
    for index, spec in enumerate(specs):
        number += index == 0 or spec.prompt is not specs[index - 1].prompt
        numbers.append(number)
    return [f"prompt[{one}]" if number else "prompt" for one in numbers]


def _refuse_unoffered(values: SequenceSpec | Sampling) -> None:
    for field in fields(values):
        value = getattr(values, field.name)
        if field.name not in OFFERED and value != field.default:
            raise Unsupported(field.name, "is not offered by this engine", shorten(value))


def _checked(tokens: tuple[int, ...], name: str, vocab: int, separator: int | None) -> tuple[int, ...]:
    if not tokens:
        if separator is None:
            raise BadRequest(name, "must not be empty: this model has no token to start from")
        return (separator,)
    if min(tokens) < 0 or max(tokens) >= vocab:
        wrong = next(token for token in tokens if not 0 <= token < vocab)
        raise BadRequest(name, f"token ids must be from 0 to {vocab - 1}", shorten(wrong))
    return tokens


def _sequence(spec: SequenceSpec, tokens: tuple[int, ...], name: str, capabilities: Capabilities) -> PreparedSequence:
    context, length = capabilities.context, len(tokens)
    if spec.logprobs is not None and not 0 <= spec.logprobs <= capabilities.max_logprobs:
        raise BadRequest("logprobs", f"must be from 0 to {capabilities.max_logprobs}", shorten(spec.logprobs))
    if spec.max_tokens is not None and spec.max_tokens < 0:
        raise BadRequest("max_tokens", "must be at least 0", shorten(spec.max_tokens))
    most = context if spec.max_tokens == 0 else context - 1  # room for one token, unless none is wanted
    if length > most:
        raise PromptTooLong(name, f"must have at most {most} tokens, for the context is {context}", str(length))
    if spec.max_tokens is not None and length + spec.max_tokens > context and not spec.truncate:
        rule = f"and the {length} tokens of {name} must together be at most {context}, the context"
        raise PromptTooLong("max_tokens", rule, shorten(spec.max_tokens))
    max_tokens = context - length if spec.max_tokens is None else min(spec.max_tokens, context - length)
    skipped = length if spec.echo_last == 0 else 0 if spec.echo_last is None else max(0, length - spec.echo_last)
    salt = blake2b(spec.cache_salt.encode("utf-8", "surrogatepass"), digest_size=16).digest() if spec.cache_salt else b""
    echo = spec.echo and skipped < length
    return PreparedSequence(tokens, max_tokens, spec.sampling, spec.logprobs, echo, echo_from=skipped if echo else 0, salt=salt)
