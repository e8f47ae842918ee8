"""Which sequences a draft model is asked for, and how far. Plain code over values; the model itself runs in ``worker/drafting``."""

from __future__ import annotations

from collections.abc import Sequence as Items

from quintet.backends.native.core.loader import PAGE
from quintet.backends.native.draft.policy import DEPTH, Policy, averaged
from quintet.backends.native.schedule.draft_pages import DraftPages
from quintet.backends.native.schedule.sequence import Sequence

TRIED = 2
"""Tokens of a draft that is not expected to pay."""

LIKELY_LEFT = 64
"""Tokens that a sequence is taken to go on for at least, if it may; after more than these, for as many as it has."""


class DraftModel:
    """What is known of the draft model and of what it has read.

    Args:
        vocab, context: of the draft model.
        narrow: the target has more tokens.
    """

    def __init__(self, vocab: int, context: int, pages: DraftPages, *, narrow: bool = False) -> None:
        self._vocab, self._context, self._narrow = vocab, context, narrow
        self.pages = pages
        self.policy = Policy()

    def ask(self, seq: Sequence, most: int, sequences: int, found: int, right: float) -> int:
        """Most tokens that it is asked for, at most ``most``; 0 = it is not.

        Args:
            sequences: that decode in this step.
            found, right: tokens of a draft from elsewhere, and how many of them are expected to be right.
        """
        policy = self.policy
        most = min(most, DEPTH, self._context - seq.length)
        if most <= 0 or not policy.known or policy.account < 0 or policy.due(sequences) or not self._reads(seq):
            return 0
        free = right * policy.worth(sequences) - found * policy.row_s(sequences)
        share = self.acceptance_rate(seq)
        gain, unread = policy.gain(share, most, sequences), self.pages.unread(seq)
        if gain > 0:
            saved = self._left(seq) * policy.saving(share, most, sequences)
            return most if gain > free and (unread <= PAGE or policy.reads(unread, saved)) else 0
        return min(most, TRIED) if share and not found and policy.tries(unread, sequences) else 0

    def acceptance_rate(self, seq: Sequence) -> float:
        """The share of its tokens that turn out right: the sequence's own, or as long as it has none that of all."""
        return self.policy.share if seq.acceptance_rate is None else seq.acceptance_rate

    def learn(self, seq: Sequence, probabilities: Items[float], right: int, *, wrong: bool) -> None:
        """What became of a draft; see ``Policy.judge``."""
        self.policy.judge(probabilities, right, wrong=wrong)
        rate = self.acceptance_rate(seq)
        for place in range(right + wrong):
            rate = averaged(rate, right=place < right)
        seq.acceptance_rate = rate

    def _reads(self, seq: Sequence) -> bool:
        """It can: all is text that it has tokens for, and where the next must conform it is known to what."""
        if seq.group.images is not None or (seq.guided and seq.matcher is None):
            return False
        return not self._narrow or self._vocab > max(max(seq.group.prompt), max(seq.generated))

    def _left(self, seq: Sequence) -> int:
        """Tokens that are likely to come yet."""
        done = len(seq.generated)
        return min(seq.max_tokens - done, max(LIKELY_LEFT, done))
