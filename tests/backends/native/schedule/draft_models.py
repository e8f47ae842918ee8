"""Draft models for the toy that are right as often as is asked, and steps that take the time that is said."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quintet.backends.native.core.types import F32, U8, Batch, Meanwhile
from quintet.backends.toy import ToyRunner


@dataclass
class Costs:
    """Seconds of steps, and what time it is.

    Args:
        target: seconds of a step of one row.
        draft: of the draft model's, as a share of that.
        row: of each row more, likewise.
    """

    target: float = 0.04
    draft: float = 0.1
    row: float = 0.02
    now: float = 0.0

    def spend(self, rows: int, share: float = 1.0) -> None:
        """A step was computed, of the target or of what takes such a share of it."""
        self.now += self.target * share * (1 + self.row * (rows - 1))


class DraftRunner(ToyRunner):
    """The toy as a draft model.

    Args:
        right: share of positions, by their hash, at which it thinks as the toy does.
        vocab: width of its logits.
        costs: what its steps take.
    """

    def __init__(self, right: float, costs: Costs, vocab: int = 257) -> None:
        super().__init__()
        self.right, self._costs, self._vocab = right, costs, vocab
        self.breaks = False
        self.computed = 0  # tokens

    @property
    def vocab(self) -> int:
        return self._vocab

    def forward(self, batch: Batch, meanwhile: Meanwhile | None = None) -> U8:
        """As the toy, in its own time."""
        if self.breaks:
            raise RuntimeError("it was told to")
        self._costs.spend(len(batch.tokens), self._costs.draft)
        self.computed += len(batch.tokens)
        return super().forward(batch, meanwhile)

    def logits(self, rows: U8) -> F32:
        """The toy's, or at some positions another text's, of which it is less sure."""
        logits = super().logits(rows)
        hashes = np.ascontiguousarray(rows[:, :8]).view("<u8")[:, 0]
        wrong = (hashes >> np.uint64(7)) % np.uint64(1000) >= np.uint64(round(1000 * self.right))
        logits[wrong] = np.roll(logits[wrong], 1, axis=1) / np.float32(4)
        if self._vocab <= logits.shape[1]:
            return np.ascontiguousarray(logits[:, : self._vocab])
        return np.pad(logits, ((0, 0), (0, self._vocab - logits.shape[1])), constant_values=np.float32(50.0))


class ShortRunner(DraftRunner):
    """One that can do without the logits of its last tokens; ``counts``: of how many each call asked."""

    def __init__(self, right: float, costs: Costs, vocab: int = 257) -> None:
        super().__init__(right, costs, vocab)
        self.counts: list[int] = []

    def first_logits(self, rows: U8, tokens: int) -> F32:
        """See ``Shortener``."""
        self.counts.append(tokens)
        return self.logits(rows)[:, :tokens]
