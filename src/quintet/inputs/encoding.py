"""Texts to ids by a tokenizer that is given: several at once, and with or without what it puts around them. Plain code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from quintet.inputs.resolve import without_second_bos

PORTION_CHARS = 1 << 16
"""Most characters of several texts that are tokenised in one go, while others wait for their turn."""


def encode_all(encode: Callable[[str], list[int]], wanted: Sequence[str]) -> dict[str, list[int]]:
    """The ids of each text."""
    return {text: encode(text) for text in wanted}


def encode_special(encode: Callable[[str], list[int]], before: int, _after: int, text: str) -> list[int]:
    """With the tokens around a text, but without a second BOS; ``before``: how many the tokenizer puts before it."""
    ids = encode(text)
    return ids[len(ids) - len(without_second_bos(ids, before)) :]


def encode_without_special(encode: Callable[[str], list[int]], before: int, after: int, text: str) -> list[int]:
    """Without the tokens that the tokenizer puts ``before`` and ``after`` a text."""
    ids = encode(text)
    return ids[before : len(ids) - after]


def portions(wanted: Sequence[str]) -> Iterator[list[str]]:
    """The texts in their order, as many together as are not long, or one that is."""
    portion: list[str] = []
    size = 0
    for text in wanted:
        if portion and size + len(text) > PORTION_CHARS:
            yield portion
            portion, size = [], 0
        portion.append(text)
        size += len(text)
    yield portion
