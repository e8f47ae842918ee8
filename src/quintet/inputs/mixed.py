"""Prompts of token ids and texts in turn, as ids. Plain code over values.

"Source": llama.cpp, tools/server/server-common.cpp, tokenize_mixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quintet.inputs.resolve import least_tokens, require_length
from quintet.models.traits import Traits

Mixed = Sequence[int | str]
"""A prompt."""


def texts_of(prompts: Mapping[str, Mixed], traits: Traits, context: int) -> tuple[list[str], list[str]]:
    """The distinct texts that prompts begin with, and those that stand further on.

    Raises:
        PromptTooLong: one cannot fit the context, whatever the tokens of its texts are.
    """
    for name, parts in prompts.items():
        texts = [part for part in parts if isinstance(part, str)]
        least = len(parts) - len(texts) + least_tokens("".join(texts), traits, context)
        require_length(name, least, context, least=True)
    first = [parts[0] for parts in prompts.values() if parts]
    later = [part for parts in prompts.values() for part in parts[1:]]
    return _distinct_texts(first), _distinct_texts(later)


def joined(
    prompts: Mapping[str, Mixed], first: Mapping[str, Sequence[int]], inside: Mapping[str, Sequence[int]], context: int
) -> list[tuple[int, ...]]:
    """The ids of each prompt.

    Args:
        first: those of texts that prompts begin with. Source: only these get the tokens that the model wants before a text.
        inside: those of the other texts.

    Raises:
        PromptTooLong: there are more than the context takes.
    """
    prompts_of_ids = []
    for name, parts in prompts.items():
        ids: list[int] = []
        for number, part in enumerate(parts):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += inside[part] if number else first[part]
        require_length(name, len(ids), context)
        prompts_of_ids.append(tuple(ids))
    return prompts_of_ids


def _distinct_texts(parts: Mixed) -> list[str]:
    return list(dict.fromkeys(part for part in parts if isinstance(part, str)))
