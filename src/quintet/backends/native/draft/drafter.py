"""One sequence's guesses of how it goes on, and how far they have been right. Plain code over values.

Prompt lookup (n-gram) drafts, before them what the client predicted, and before that what a guide forces (jump-forward). How long a draft
is worth computing follows from how often its source was right lately, an exponential average a for each::

    P(the k-th token counts) = a^k      worth a row while a^k > sequences / (sequences + FREE_ROWS)

A guess is judged by what is drawn whether it was computed or not, so a source that was wrong is given up at no cost, and tried again at
none.
Why: docs/decisions/0003-scheduling.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from quintet.backends.native.draft.lookup import Lookup
from quintet.prediction import Follower, Predicted

RATE = 0.25
"""What one more outcome counts against all before it."""

FREE_ROWS = 3
"""What a step costs before its first row, in rows: 3.3 ms and 1.1 ms on two cores with AVX2, the bundled model. More on larger ones."""


class AcceptanceRate:
    """The share of a source's tokens that turn out right, as it was lately."""

    def __init__(self, share: float) -> None:
        self._share = share

    def learn(self, right: int, *, wrong: bool) -> None:
        """``right`` tokens were, and then one was not, or there was none to compare."""
        self._share = 1 - (1 - self._share) * (1 - RATE) ** right
        if wrong:
            self._share *= 1 - RATE

    def likely(self, count: int) -> float:
        """Tokens of a draft of so many that are expected to turn out right: the geometric series of the share."""
        share = min(self._share, 0.999)
        return share * (1 - share**count) / (1 - share)

    def length(self, sequences: int) -> int:
        """Tokens worth drafting where so many sequences decode.

        A token that is right saves its sequence a step, which it would have shared with the others: that costs as much as
        ``1 + FREE_ROWS / sequences`` rows. So a row is worth it that is likelier than one in so many; the k-th token's is right with
        probability share^k.
        """
        worth = sequences / (sequences + FREE_ROWS)
        return int(math.log(worth) / math.log(min(max(self._share, 0.01), 0.99)))


def matching(guess: Iterable[int], drawn: Iterable[int]) -> int:
    """How many tokens of a guess were drawn, from the first on."""
    count = 0
    for guessed, token in zip(guess, drawn, strict=False):
        if guessed != token:
            break
        count += 1
    return count


def judged(guess: Sequence[int], drawn: Sequence[int]) -> tuple[int, bool]:
    """How many tokens of a guess were drawn, and whether another one was then: not if there was none left to compare."""
    right = matching(guess, drawn)
    return right, right < min(len(guess), len(drawn))


class Drafter:
    """Draws on a guide, if there is one and it says anything, then on a prediction, as long as the output follows it, and else on the
    sequence's own tokens.

    Guesses are compared with what is drawn also where nothing was drafted. So a text that does not repeat costs the looking up and
    nothing more, and it is noticed when it begins to.
    """

    def __init__(self, prompt: Sequence[int], prediction: Sequence[int] = ()) -> None:
        self._lookup = Lookup(prompt)
        self._follower = Follower(Predicted(prediction)) if prediction else None
        self._seen = 0  # tokens of the output that the index has
        self._lookup_rate, self._prediction_rate, self._guide_rate = AcceptanceRate(0.5), AcceptanceRate(0.8), AcceptanceRate(0.8)
        self._rate = self._lookup_rate  # of the source that the guess is from
        self._guess: list[int] = []
        self._guess_start = 0  # in the output

    def draft(self, output: Sequence[int], most: int, sequences: int, jump: Callable[[], list[int]]) -> list[int]:
        """At most ``most`` tokens with which the output may go on.

        Args:
            output: all tokens generated so far.
            sequences: that decode in this step.
            jump: what the guide makes likely.
        """
        self._judge(output)
        self._lookup.extend(output[self._seen :])
        if self._follower:
            for token in output[self._seen :]:
                self._follower.feed(token)
        self._seen = self._guess_start = len(output)
        self._guess, self._rate = jump(), self._guide_rate
        if not self._guess and self._follower:
            self._guess, self._rate = list(self._follower.guess(most)), self._prediction_rate
        if not self._guess:
            self._guess, self._rate = self._lookup.guess(most), self._lookup_rate
        return self._guess[: min(most, self._rate.length(sequences))]

    def silent(self, token: int) -> bool:
        """Whether there will be no guess after this token, the next of the output; no guide is asked."""
        return self._follower is None and not self._lookup.knows(token)

    def likely(self, count: int) -> float:
        """Of the last draft's first tokens, how many are expected to be right."""
        return self._rate.likely(count)

    def _judge(self, output: Sequence[int]) -> None:
        right, wrong = judged(self._guess, output[self._guess_start :])
        self._rate.learn(right, wrong=wrong)
