"""What goes to vLLM and what comes of it, as plain values. Plain code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quintet.backends.native.schedule.plan import Top
from quintet.inputs.images.expansion import Expansion, ProcessorTraits
from quintet.inputs.images.layout import ImageTraits
from quintet.inputs.images.value import PreparedImage
from quintet.inputs.sequence import Adapter


class CoreDeadError(Exception):
    """vLLM's engine has ended, with all of its requests."""


class RejectedError(Exception):
    """vLLM does not take a request, or gives it up; the others go on. Its text is for the client."""


def in_one_line(error: BaseException, most: int = 300) -> str:
    """What an exception of vLLM's says of its cause, in so many characters."""
    return " ".join(str(error.__cause__ or error).split())[:most] or type(error).__name__


@dataclass(frozen=True, slots=True)
class Processed:
    """What vLLM's own processor has made of an image.

    Args:
        name: hexadecimal, of what the model takes of it: equal names mean equal rows of embeddings.
        item: vLLM's, for the model.
        mask: bools of ``expansion.core``: which are places; ``None`` = all.
        size: bytes of ``item``.
    """

    expansion: Expansion
    name: str
    item: Any
    mask: Any
    size: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A sequence, for vLLM.

    Args:
        name: unique.
        salt: of cached prefixes; empty = shared with all without one.
        logprobs, prompt_logprobs: alternatives; ``None`` = no log-probabilities.
        ends: tokens after which it may stop by itself.
        choose: an encoded ``Choose``.
        adapter: that is loaded; ``None`` = the model by itself.
        images: at places among the tokens, with their pixels, or, without them, ``processed``.
        processed: what vLLM's own processor has made of each of them.
    """

    name: str
    tokens: tuple[int, ...]
    max_tokens: int
    salt: str
    logprobs: int | None
    prompt_logprobs: int | None
    ends: tuple[int, ...]
    choose: bytes
    adapter: Adapter | None = None
    images: tuple[PreparedImage, ...] = ()
    processed: tuple[Processed, ...] = ()


Scored = tuple[float, Top]
"""A token's log-probability, and the likeliest with theirs, falling."""


@dataclass(frozen=True, slots=True)
class Output:
    """What came of one or more steps for a sequence.

    Args:
        scored: of each of ``tokens``; empty if none were asked for.
        prompt: of each of the prompt's tokens but the first; with the first output, if asked for.
        finished: vLLM computes no more of it.
        cached: prompt tokens that came from the prefix cache.
        scheduled: when its first step began, on the machine's monotonic clock; 0 = unknown.
    """

    tokens: tuple[int, ...]
    scored: tuple[Scored, ...]
    prompt: tuple[Scored, ...] | None
    finished: bool
    cached: int
    scheduled: float


@dataclass(frozen=True, slots=True)
class Step:
    """vLLM's statistics of a step; all but the first three are of this step alone."""

    running: int
    waiting: int
    usage: float
    prefilled: int = 0
    generated: int = 0
    preempted: int = 0
    queried: int = 0
    found: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What was loaded.

    Args:
        images: how it sees images; ``None`` = it does not, or as ``processor`` says.
        processor: vLLM's own, where that shows it images; ``None`` = it does not.
    """

    context: int
    vocab: int
    pages: int
    page: int
    most_tokens: int
    most_running: int
    most_adapters: int
    fingerprint: str
    images: ImageTraits | None = None
    processor: ProcessorTraits | None = None
