"""The canonical request: what a completion call means once a dialect has parsed it.

Every default is resolved by the dialect; no ``None`` here means "the default".
"""

from __future__ import annotations

from dataclasses import dataclass

Prompt = str | tuple[int, ...]
"""A prompt is text (tokenised by the backend) or token ids (taken exactly as they are)."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen.

    Args:
        temperature: 0 means greedy; the logits are divided by it otherwise.
        top_p: nucleus mass in (0, 1]; 1 keeps every token.
        seed: choice *i* of a request draws with ``seed + i``. The dialect (or the service, for unseeded requests)
            always fills it, in ``[0, 2**64)``.
    """

    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True, slots=True)
class StopRules:
    """When text ends a choice.

    Args:
        strings: literal stop strings, matched over token and character borders.
        include: keep the matched stop string in the returned text.
    """

    strings: tuple[str, ...] = ()
    include: bool = False


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One parsed ``POST /v1/completions``.

    Args:
        model: the name the client asked for.
        prompts: one or more prompts; choices are numbered ``prompt_index * n + sample_index``.
        max_tokens: most tokens to generate per choice; ``None`` = up to the end of the context. 0 is allowed.
        n: choices per prompt.
        echo: the prompt precedes the generated text.
        logprobs: number of most likely alternatives per token; 0 = only the chosen token's; ``None`` = no
            log-probabilities at all.
        stream: answer with server-sent events.
        include_usage: a stream carries token usage.
        user: the client's end-user id: for metrics and logs only.
    """

    model: str
    prompts: tuple[Prompt, ...]
    max_tokens: int | None
    n: int
    echo: bool
    logprobs: int | None
    sampling: Sampling
    stop: StopRules
    stream: bool
    include_usage: bool
    user: str
