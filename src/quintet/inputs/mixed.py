"""Prompts of token ids and texts in turn, as ids. Plain code over values.

"Source": llama.cpp, tools/server/server-common.cpp, tokenize_mixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
    first = _texts(parts[:1] for parts in prompts.values())
    return first, _texts(parts[1:] for parts in prompts.values())


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
    made = []
    for name, parts in prompts.items():
        ids: list[int] = []
        for number, part in enumerate(parts):
            ids += [part] if isinstance(part, int) else inside[part] if number else first[part]
        require_length(name, len(ids), context)
        made.append(tuple(ids))
    return made


def _texts(parts: Iterable[Mixed]) -> list[str]:
    return list(dict.fromkeys(one for some in parts for one in some if isinstance(one, str)))
