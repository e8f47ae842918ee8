"""Choosing the tokens of a batch: rows of logits in, a token of each out. Nothing of vLLM or torch is needed for it.

The pipeline of docs/sampling.md is the compiled core's (``Samplers``), the one that native sequences go through; masks are made by the
same followers of guides and thinking. Nothing here raises: vLLM's engine would end with all of its requests. A row of which no token can be
chosen is told to ``refuse``, and gets a token that nobody looks at.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from quintet.backends.native.core.types import F32, I32, U32, Outcome, Sampler, Samplers
from quintet.backends.native.draft.thinking_budget import ThinkingBudget
from quintet.backends.vllm.wire import Choose
from quintet.guides.compiled import Guides
from quintet.guides.matcher import Matcher

PARKED = 256
"""Sequences that left the batch and may come back: vLLM does not say whether one that it removes has ended or was preempted."""

STILL = 64
"""Draws without a row, after which no guide is kept for it: vLLM's second model runner says of no sequence that it has ended. Where
guides take far too much it is one: an engine without other work would draw for nobody else before it refuses who comes."""

SLOW_S, TOTAL_S = 0.02, 2.0
"""Processor time of a mask that counts, and most of a sequence's: a mask holds up the whole batch here."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Row:
    """A sequence in vLLM's batch.

    Args:
        generated: its tokens so far; whoever made the row keeps it up to date.
        sampler, follower: made when they are needed; they have seen a part of ``generated``.
        mask_s: processor time of its slow masks.
        broken: something of it raised; nothing is chosen for it any more.
    """

    choose: Choose
    generated: list[int]
    sampler: Sampler | None = None
    follower: Matcher | ThinkingBudget | None = None
    mask_s: float = 0.0
    broken: bool = False

    @property
    def position(self) -> int:
        """Of the next token."""
        return self.choose.start + len(self.generated)

    @property
    def guided(self) -> bool:
        """Not every token may come next."""
        asked = self.choose.sequence
        return bool(asked.grammar) or (asked.thinking is not None and asked.thinking.budget is not None)

    def began(self, generated: list[int]) -> bool:
        """What it has seen is the beginning of these."""
        seen = max(self.sampler.accepted if self.sampler else 0, self.follower.consumed if self.follower else 0)
        return not self.broken and generated[:seen] == self.generated[:seen]

    def go_back(self, position: int) -> bool:
        """The next token is at this position, and what was chosen from there on has come to nothing; False: its prompt ends later."""
        count = position - self.choose.start
        if count < 0:
            return False
        if count < len(self.generated):
            kept = self.generated[:count]
            if not self.began(kept):
                self.sampler = self.follower = None
            self.generated = kept
        return True


@dataclass(slots=True)
class Chooser:
    """For one model, in one of vLLM's workers.

    Args:
        vocab: width of the logits.
        refuse: told of a key and a position at which there is no token, and why.
    """

    samplers: Samplers
    guides: Guides
    vocab: int
    refuse: Callable[[int, int, Outcome], None]
    _parked: OrderedDict[int, Row] = field(default_factory=OrderedDict)
    _following: OrderedDict[Row, int] = field(default_factory=OrderedDict)  # rows with a follower, and in which draw; the first longest ago
    _draws: int = 0

    def enter(self, choose: Choose, generated: list[int] | None = None) -> Row:
        """A sequence comes into the batch, for the first time or again.

        Args:
            generated: what it has generated; ``None`` = what was chosen here.
        """
        row = self._parked.pop(choose.key, None) or Row(choose, [])
        if generated is not None:
            if not row.began(generated):
                row = Row(choose, generated)
            row.generated = generated
        return row

    def leave(self, row: Row) -> None:
        """It is out of the batch."""
        self._let_go(row)  # most have ended, and a guide that is followed is never dropped; who comes back begins it again
        self._parked[row.choose.key] = row
        if len(self._parked) > PARKED:
            self._parked.popitem(last=False)

    def draw(self, logits: F32, rows: Sequence[Row]) -> I32:
        """A token for each row.

        Args:
            logits: float32 [R, V], the model's own; not changed.
            rows: [R], no two the same.

        Returns:
            int32 [R], each in the vocabulary.
        """
        self._draws += 1
        for row in self._still(rows):
            self._let_go(row)
        tokens = np.zeros(len(rows), np.int32)
        ready = [at for at, row in enumerate(rows) if self._prepare(row)]
        if not self._draw(logits, rows, ready, tokens):
            for at in ready:  # all but whoever it was
                if not self._draw(logits, rows, [at], tokens):
                    self._break(rows[at])
        return tokens

    def _draw(self, logits: F32, rows: Sequence[Row], ready: list[int], tokens: I32) -> bool:
        """Fill in the tokens of some rows; False: the core raised, and some of them may be missing."""
        if not ready:
            return True
        own = [rows[at] for at in ready]
        try:
            masks = self._masks(own)
            samplers = [row.sampler for row in own if row.sampler is not None]
            positions = np.array([row.position for row in own], np.uint64)
            drawn = self.samplers.draw(logits if len(own) == len(rows) else logits[ready], samplers, positions, masks).tokens
        except BaseException:  # whatever it is: nothing may reach vLLM's loop
            _log.exception("tokens could not be chosen")
            return False
        for at, row, token in zip(ready, own, drawn.tolist(), strict=True):
            if token < 0:
                self.refuse(row.choose.key, row.position, Outcome(token))
            tokens[at] = max(token, 0)
        return True

    def _prepare(self, row: Row) -> bool:
        """Let its sampler see what was generated; False: it has none any more."""
        if row.broken:
            return False
        try:
            if row.sampler is None:
                asked = row.choose.sequence
                row.sampler = self.samplers.make(asked.sampling, asked.bad_words, asked.tokens)
            for token in row.generated[row.sampler.accepted :]:
                row.sampler.accept(token)
        except BaseException:
            _log.exception("a sampler could not be made, or go on")
            self._break(row)
            return False
        return True

    def _masks(self, rows: Sequence[Row]) -> U32 | None:
        """uint32 [R, ceil(V / 32)]; all zeros where a guide cannot go on; ``None`` if there is none."""
        if not any(row.guided for row in rows):
            return None
        masks = np.full((len(rows), -(-self.vocab // 32)), 0xFFFFFFFF, np.uint32)
        for mask, row in zip(masks, rows, strict=True):
            if row.guided and not self._fill(row, mask):
                mask[:] = 0
        return masks

    def _fill(self, row: Row, mask: U32) -> bool:
        if row.mask_s > TOTAL_S:
            return False
        begin = time.thread_time()
        try:
            with self.guides.growing(row.choose.sequence.grammar) as room:
                filled = room and self._follow(row, mask)
        except BaseException:  # a panic of the library is no ``Exception``
            _log.exception("a mask could not be made")
            filled = False
        took = time.thread_time() - begin
        row.mask_s += took if took > SLOW_S else 0.0
        return filled

    def _follow(self, row: Row, mask: U32) -> bool:
        row.follower = follower = row.follower or self._follower(row)
        self._following[row] = self._draws
        self._following.move_to_end(row)
        filled = all(follower.consume(token) for token in row.generated[follower.consumed :]) and follower.fill(mask)
        if not follower.error:
            return filled
        # A limit of what all of the guide share was met, maybe by another's: again from the beginning.
        self.guides.forget(row.choose.sequence.grammar)
        row.follower = follower = self._follower(row)
        return all(follower.consume(token) for token in row.generated) and follower.fill(mask)

    def _follower(self, row: Row) -> Matcher | ThinkingBudget:
        asked, compiler = row.choose.sequence, self.guides.compiler
        matcher = self.guides.matcher(asked.grammar) if asked.grammar else None
        if asked.thinking is not None:
            return ThinkingBudget(asked.thinking, compiler.pieces, compiler.eos_ids, matcher)
        assert matcher is not None, "asked of a guided row only"
        return matcher

    def _still(self, rows: Sequence[Row]) -> list[Row]:
        """Followed ones that may have ended; where guides take so much that some would not be followed, all that nothing is drawn for."""
        most, drawn = 0 if self.guides.crowded else STILL, {*rows}
        found = takewhile(lambda row: self._draws - self._following[row] > most, self._following)
        return [row for row in found if row not in drawn]

    def _let_go(self, row: Row) -> None:
        row.follower = None
        self._following.pop(row, None)

    def _break(self, row: Row) -> None:
        row.broken = True
        self.refuse(row.choose.key, row.position, Outcome.NOT_DRAWN)
