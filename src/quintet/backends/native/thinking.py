"""A budget of thinking, held token by token like a guide; and what a tokenizer knows of think blocks."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass

import numpy as np

from quintet.backends.base import SequenceSpec
from quintet.backends.native.core import Tokenizer
from quintet.backends.native.guide import U32, Follower
from quintet.thinking import ThinkCounter, Thinking, ends_inside


@dataclass(frozen=True, slots=True)
class Tags:
    """What a model writes around its thinking; see ``Thinking``."""

    start: bytes
    end: bytes
    close: tuple[int, ...]


def tags_of(tokenizer: Tokenizer) -> Tags | None:
    """``None`` if the model does not think."""
    found = getattr(tokenizer, "think", None)
    if found is None:
        return None
    first = found.token if found.token is not None else tokenizer.encode_inside(found.end)[0]
    close = []
    for at in range(len(found.end)):
        token = tokenizer.encode_inside(found.end[at:])[0] if at else first
        # Inside a character no rest can be written, so the tag is begun anew.
        close += [token, *[first] * (len(found.end[at].encode()) - 1)]
    return Tags(found.start.encode(), found.end.encode(), tuple(close))


def thinking(tags: Tags, prompt: Sequence[int], pieces: Sequence[bytes], spec: SequenceSpec) -> Thinking | None:
    """How a sequence after this prompt may think.

    A guide governs the text from its beginning, so a model that has one does not think, unless the prompt ends in an open block:
    then it governs what follows that block.

    Args:
        pieces: the bytes of each token id.
    """
    inside = ends_inside(b"".join(map(pieces.__getitem__, prompt)), tags.start, tags.end)
    if spec.guide is not None and not inside:
        return None
    budget = spec.reasoning.budget if spec.reasoning else None
    return Thinking(tags.start, tags.end, tags.close, inside, once=spec.guide is not None, budget=budget)


class Thinker:
    """Where one sequence stands in its thinking, in the manner of ``Follower``.

    In a block every token is allowed while there is budget, and then only the end tag. It is written on from where the text has
    come to, so that a model which has begun to write it, in whatever tokens, does not get it twice.

    Args:
        pieces: the bytes of each token id.
        guide: what the text after the block must conform to. It begins with the first token after the one that completes the tag, and
            until then no token ends the sequence, as it could not conform.
        eos_ids: tokens that end a sequence.
    """

    def __init__(self, thinking: Thinking, pieces: Sequence[bytes], eos_ids: frozenset[int], guide: Follower | None = None) -> None:
        self._thinking = thinking
        self._pieces = pieces
        self._eos_ids = eos_ids
        self._guide = guide
        self._counter = ThinkCounter(thinking)
        self.consumed = 0

    def copy(self) -> Thinker:
        """Another one at the same place."""
        other = copy(self)
        other._counter, other._guide = deepcopy(self._counter), self._guide and self._guide.copy()
        return other

    def forced(self) -> bytes:
        """See ``Follower``."""
        return self._guide.forced() if self._guide and not self._counter.inside else b""

    @property
    def error(self) -> str:
        """Why it cannot go on; empty = it can."""
        return self._guide.error if self._guide else ""

    def fill(self, mask: U32) -> bool:
        """See ``Follower``."""
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
        """See ``Follower``."""
        self.consumed += 1
        if self._guide and not self._counter.inside:
            return self._guide.consume(token)
        self._counter.feed(self._pieces[token])
        return True


def _set(mask: U32, token: int) -> None:
    mask[token // 32] |= np.uint32(1 << token % 32)


def _clear(mask: U32, token: int) -> None:
    mask[token // 32] &= np.uint32(0xFFFFFFFF ^ 1 << token % 32)
