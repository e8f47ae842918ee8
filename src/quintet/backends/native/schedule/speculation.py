"""Which sequences of a step are computed further than their next token, on a guess. Plain code over values.

The guess comes from the sequence's own text or its guide (``draft/``), or from a draft model, if there is one and it is expected to save
more time (``draft_model``): then the plan says only how far it may go, and ``worker/drafting`` asks it. The guess is verified: every
token is drawn as it would have been without it, and the first that differs ends it::

    drafted          the  cat  sat           computed in one step: 4 rows
    drawn from     ^ the  cat  lay           each row draws what it would have drawn alone
    kept             the  cat  lay           2 right, and the one that was not is still a token

So drafts change no token, no log-probability, and only the time it takes. Published schemes accept by comparing probabilities and keep the
distribution; here a draw is a function of seed and position, so the very tokens are kept. Why, and what a row costs:
docs/decisions/0003-scheduling.md, 0007-speed-on-avx2.md.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import NamedTuple

from quintet.backends.native.draft.drafter import Drafter
from quintet.backends.native.schedule.draft_model import DraftModel
from quintet.backends.native.schedule.sequence import Sequence

SEQUENCES = 8
"""Where more sequences decode nothing is drafted: a row costs nearly what it could save."""

ROWS = 32
"""Most rows of a step that has drafts: bounds how long it takes, and the memory of its logits."""


class Draft(NamedTuple):
    """What a sequence is computed on beside its next token.

    Args:
        tokens: that may follow it.
        ask: most tokens that the draft model may add, where there are none yet.
    """

    tokens: list[int]
    ask: int = 0

    @property
    def places(self) -> int:
        """How many it takes."""
        return len(self.tokens) or self.ask

    def cut(self, places: int) -> Draft:
        """The same for so many places."""
        return Draft(self.tokens[:places], min(self.ask, places))


class Speculation:
    """Drafts for the sequences of one model.

    Args:
        eos_ids: ids that end a sequence; no draft goes as far.
        jump: what a sequence's guide makes likely, if it has one.
        model: the draft model; ``None`` = there is none.
    """

    def __init__(
        self,
        eos_ids: frozenset[int],
        jump: Callable[[Sequence], list[int]] = lambda _: [],
        model: DraftModel | None = None,
    ) -> None:
        self._eos_ids = eos_ids
        self._jump = jump
        self._model = model

    def drafts(self, decoding: Items[Sequence], most_rows: int, *, busy: bool) -> list[Draft]:
        """For each sequence what may follow its last token, or who is asked; empty if there is nothing for any.

        Args:
            most_rows: tokens that the step may compute.
            busy: somebody computes a prompt, or waits to: the step's time is theirs.
        """
        if busy or not 0 < len(decoding) <= SEQUENCES:
            return []
        share = min(ROWS, most_rows) // len(decoding) - 1
        drafts = [self._draft(seq, min(share, seq.max_tokens - len(seq.generated) - 1), len(decoding)) for seq in decoding]
        return drafts if any(draft.places for draft in drafts) else []

    def silent(self, sequences: Items[Sequence], tokens: Items[int]) -> bool:
        """Whether nothing will be drafted for any of these, which have no guides, once it has gone on with its token."""
        if len(sequences) > SEQUENCES:
            return True
        found = (seq.drafter is not None and seq.drafter.silent(token) for seq, token in zip(sequences, tokens, strict=True))
        return self._model is None and all(found)

    def _draft(self, seq: Sequence, most: int, sequences: int) -> Draft:
        if most <= 0 or seq.slow:
            return Draft([])
        drafter = seq.drafter = seq.drafter or Drafter(seq.group.text, seq.prediction)
        found = drafter.draft(seq.generated, most, sequences, lambda: self._jump(seq))
        found = found[: next((at for at, token in enumerate(found) if seq.ends_with(token, self._eos_ids)), None)]
        asked = self._model if seq.foreseen else None
        ask = asked.ask(seq, most, sequences, len(found), drafter.likely(len(found))) if asked else 0
        return Draft([], ask) if ask else Draft(found)
