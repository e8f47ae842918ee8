"""A request's sequences on their way to the worker: what several of them have in common is sent once. Plain code over values.

A request may have a thousand samples and a megabyte of guide and bad words, which are the same for all of them. Of each sample goes
what it has for itself, with the numbers of its prompt and of what else is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from operator import attrgetter

import msgspec

from quintet.inputs.images.value import PreparedImage
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Sampling
from quintet.thinking import Thinking

MOST_PREDICTED = 8
"""Sequences of a request whose prediction the worker is told: where more decode nothing is drafted."""

Prompt = tuple[int, ...]
Images = tuple[PreparedImage, ...]


class Sample(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """What differs from one sample to another: by the seed, and by what its prompt's length and text make of the rest.

    Args:
        prompt, asked: numbers of those, see ``Submit``.
        seed, min_tokens: see ``Sampling``.
        max_tokens, echo, prompt_end, echo_from, thinking: see ``PreparedSequence``.
    """

    prompt: int
    asked: int
    seed: int
    min_tokens: int
    max_tokens: int
    echo: bool
    prompt_end: int | None
    echo_from: int
    thinking: Thinking | None


_OWN = (*Sample.__struct_fields__, "tokens", "images", "sampling")
_shared = attrgetter(
    *(field.name for field in fields(PreparedSequence) if field.name not in _OWN),
    *(f"sampling.{field.name}" for field in fields(Sampling) if field.name not in _OWN),
)


def pack(
    sequences: Sequence[PreparedSequence],
) -> tuple[tuple[Prompt, ...], tuple[PreparedSequence, ...], tuple[Sample, ...], tuple[Images, ...]]:
    """Prompts, what else is asked, samples and the prompts' images, as ``Submit`` has them."""
    numbers: dict[tuple[Prompt, Images], int] = {}
    known: dict[tuple[int, int], int] = {}  # by identity: samples of a prompt hold the same objects, and hashing them 128 times is slow
    asked: list[PreparedSequence] = []
    samples: list[Sample] = []
    last = None
    for sequence in sequences:
        tokens, images, sampling = sequence.tokens, sequence.images, sequence.sampling
        same = id(tokens), id(images)
        if same not in known:
            known[same] = numbers.setdefault((tokens, tuple(replace(image, pixels=b"") for image in images)), len(numbers))
        shared = _shared(sequence)
        if shared != last:  # those of a request are the same objects too, and one comparison is enough
            kept = sequence.prediction if len(sequences) <= MOST_PREDICTED else ()
            asked.append(replace(sequence, tokens=(), images=(), prediction=kept))
            last = shared
        sample = Sample(
            prompt=known[same],
            asked=len(asked) - 1,
            seed=sampling.seed,
            min_tokens=sampling.min_tokens,
            max_tokens=sequence.max_tokens,
            echo=sequence.echo,
            prompt_end=sequence.prompt_end,
            echo_from=sequence.echo_from,
            thinking=sequence.thinking,
        )
        samples.append(sample)
    return tuple(tokens for tokens, _ in numbers), tuple(asked), tuple(samples), tuple(images for _, images in numbers)


def unpack(
    prompts: Sequence[Prompt], asked: Sequence[PreparedSequence], samples: Sequence[Sample], images: Sequence[Images]
) -> Iterator[PreparedSequence]:
    """The sequences as they were, but for the images' pixels; what is long of them is one object for all that have it."""
    for sample in samples:
        whole = asked[sample.asked]
        sampling = whole.sampling
        if (sampling.seed, sampling.min_tokens) != (sample.seed, sample.min_tokens):
            sampling = replace(sampling, seed=sample.seed, min_tokens=sample.min_tokens)
        yield replace(
            whole,
            tokens=prompts[sample.prompt],
            images=images[sample.prompt] if images else (),
            sampling=sampling,
            max_tokens=sample.max_tokens,
            echo=sample.echo,
            prompt_end=sample.prompt_end,
            echo_from=sample.echo_from,
            thinking=sample.thinking,
        )
