"""A budget of thinking, held token by token like a guide."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy

import numpy as np

from quintet.guides.matcher import U32, Matcher
from quintet.thinking import ThinkCounter, Thinking


class ThinkingBudget:
    """Where one sequence stands in its thinking, in the manner of ``Matcher``.

    In a block every token is allowed while there is budget, and then only the end tag. It is written on from where the text has
    come to, so that a model which has begun to write it, in whatever tokens, does not get it twice.

    Args:
        pieces: the bytes of each token id.
        guide: what the text after the block must conform to. It begins with the first token after the one that completes the tag, and
            until then no token ends the sequence, as it could not conform.
        eos_ids: tokens that end a sequence.
    """

    def __init__(self, thinking: Thinking, pieces: Sequence[bytes], eos_ids: frozenset[int], guide: Matcher | None = None) -> None:
        self._thinking = thinking
        self._pieces = pieces
        self._eos_ids = eos_ids
        self._guide = guide
        self._counter = ThinkCounter(thinking)
        self.consumed = 0

    def copy(self) -> ThinkingBudget:
        """Another one at the same place."""
        other = copy(self)
        other._counter, other._guide = deepcopy(self._counter), self._guide and self._guide.copy()
        return other

    def forced(self) -> bytes:
        """See ``Matcher``."""
        return self._guide.forced() if self._guide and not self._counter.inside else b""

    @property
    def error(self) -> str:
        """Why it cannot go on; empty = it can."""
        return self._guide.error if self._guide else ""

    def fill(self, mask: U32) -> bool:
        """See ``Matcher``."""
        if self._guide and not self._counter.inside:
            return self._guide.fill(mask)
        budget = self._thinking.budget
        if self._counter.inside and budget is not None and self._counter.spent >= budget:
            mask[:] = 0
            _set(mask, self._thinking.close[self._counter.matched])
            return True
        mask[:] = 0xFFFFFFFF
        if self._guide:
            for token in self._eos_ids:
                _clear(mask, token)
        return True

    def consume(self, token: int) -> bool:
        """See ``Matcher``."""
        self.consumed += 1
        if self._guide and not self._counter.inside:
            return self._guide.consume(token)
        self._counter.feed(self._pieces[token])
        return True


def _set(mask: U32, token: int) -> None:
    mask[token // 32] |= np.uint32(1 << token % 32)


def _clear(mask: U32, token: int) -> None:
    mask[token // 32] &= np.uint32(0xFFFFFFFF ^ 1 << token % 32)
