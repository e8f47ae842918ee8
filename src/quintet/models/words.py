"""Words to ids with a memory: the same words come again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

CACHED_WORDS = 1 << 15
CACHED_LENGTH = 32
"""Characters; bounds the memory that a prompt of made-up words can take, to a few MB."""


class WordCache:
    """Encodes words one by one.

    Args:
        encode: ids of one word, which depend on that word only.
    """

    def __init__(self, encode: Callable[[str], Sequence[int]]) -> None:
        self._encode = encode
        self._known: dict[str, Sequence[int]] = {}

    def encode(self, words: Sequence[str]) -> list[int]:
        """The ids of all words, one after the other."""
        out: list[int] = []
        known = self._known
        for word in words:
            ids = known.get(word)
            if ids is None:
                ids = self._encode(word)
                if len(word) <= CACHED_LENGTH:
                    if len(known) >= CACHED_WORDS:
                        known.clear()
                    known[word] = ids
            out += ids
        return out
