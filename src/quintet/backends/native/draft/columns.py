"""How many of its tokens a draft model computes logits for. Plain code over values.

The output matrix of a small model is a large part of its step, and ids of a vocabulary made of merges are in the order of these: the first
half has nearly all that a text in English or a program is made of. So where that was so lately, a draft is drawn from the first half
alone. A token of the other half is a draft that ends there; a text that has many, Chinese perhaps, is drafted from all of them.
"""

from __future__ import annotations

from collections.abc import Iterable

COVERED = 0.97
"""Share of the tokens that were drawn that must be in the first half."""

RATE = 0.01
"""What a token counts against those before it."""


class Columns:
    """Which logits of a draft model are worth computing.

    Args:
        vocab: of the draft model.
        halves: it can compute those of the first half alone.
    """

    def __init__(self, vocab: int, *, halves: bool) -> None:
        self._vocab = vocab
        self._half = vocab // 2 if halves else vocab
        self._covered = 1.0

    def learn(self, tokens: Iterable[int]) -> None:
        """These were drawn."""
        for token in tokens:
            self._covered += ((token < self._half) - self._covered) * RATE

    @property
    def count(self) -> int:
        """Of how many tokens, from the first one on."""
        return self._half if self._covered >= COVERED else self._vocab
