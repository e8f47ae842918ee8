"""How far a draft model is worth asking, by what it costs and how often it is right. Plain code over values.

A round of speculation of n sequences costs a step of the draft model for each token of the longest draft, and more rows of the target's
step. It brings the tokens that are accepted, each of which would have cost its share of a step::

    worth(token) = seconds of a step of n rows / n / how much faster it goes with drafts than without
    go on        while P(all so far right) * P(the next is) * worth > seconds of a draft step / n + seconds of a row

All of these are measured: the steps' seconds by their rows (``Costs``), how often a sequence's drafts are right, and how often a token is
that the draft model gave such and such a probability. So a draft ends where the model is unsure, and there is none where it does not pay.

Estimates can be wrong, so there is an account too, in seconds: what drafts saved comes in, what they cost goes out, and 1 % of the time of
all steps comes in beside. Nothing is drafted while it is below 0. So whatever the estimates say, drafting costs no more than that 1 %
and what the account began with, which is some steps' worth.
Why: docs/decisions/0042-draft-models.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from quintet.backends.native.draft.costs import Costs

DEPTH = 12
"""Most tokens that the draft model drafts at once."""

ALLOWANCE = 0.01
"""Share of the time of all steps that may be lost to trying."""

CREDIT_STEPS = 8
"""Steps of a single sequence whose time may be lost at the beginning."""

SAVED_STEPS = 64
"""And that what was saved can amount to: what is above is gained for good."""

CONTROL = 64
"""After so many steps with drafts there is one without: what that costs is what all is compared with."""

MARGIN = 2.0
"""What is saved by reading a prompt with the draft model must be so many times what it costs: how long a text gets is not known."""

EXPECTED_SHARE = 0.7
"""Of drafted tokens that are right, as long as nothing is known of it."""

_RATE, _SHARED_RATE = 0.1, 0.02  # what an outcome counts against those before it: for its sequence, and for all
_CLASSES = 10  # of probabilities


class Confidence:
    """How often a drafted token is right by the probability that the draft model gave it."""

    def __init__(self) -> None:
        self._right = [(place + 0.5) / _CLASSES for place in range(_CLASSES)]
        self._seen = [2] * _CLASSES

    def learn(self, probability: float, *, right: bool) -> None:
        """It was, or was not."""
        place = _class(probability)
        self._seen[place] += 1
        self._right[place] += (right - self._right[place]) * max(_SHARED_RATE, 1 / self._seen[place])

    def of(self, probability: float) -> float:
        """The share that is right."""
        return self._right[_class(probability)]


def _class(probability: float) -> int:
    return min(int(probability * _CLASSES), _CLASSES - 1) if probability > 0 else 0


class Policy:
    """What is known of a draft model beside its target; see above."""

    def __init__(self) -> None:
        self.target, self.drafting = Costs(), Costs()
        self.confidence = Confidence()
        self.share = EXPECTED_SHARE
        self._seen = 8  # outcomes, and as many as what is expected counts
        self._speedup = 1.0
        self._account: float | None = None

    @property
    def known(self) -> bool:
        """Steps of both models were seen."""
        return bool(self.target) and bool(self.drafting)

    @property
    def account(self) -> float:
        """Seconds that may be lost yet."""
        return CREDIT_STEPS * self.target.of(1) if self._account is None else self._account

    def worth(self, sequences: int) -> float:
        """Seconds that a token more is worth, where so many sequences decode."""
        return self.target.of(sequences) / sequences / max(1.0, self._speedup)

    def row_s(self, sequences: int) -> float:
        """Seconds of a row more in the target's step."""
        return self.target.row(sequences)

    def gain(self, share: float, most: int, sequences: int) -> float:
        """Seconds that a draft is expected to save a sequence, at the best length up to ``most``; below 0 if none does.

        Args:
            share: of the sequence's drafted tokens that are right.
            sequences: that decode, and of which all are taken to be drafted for.
        """
        worth, cost = self.worth(sequences), self.drafting.of(sequences) / sequences + self.row_s(sequences)
        saved, best, right = 0.0, -cost, 1.0
        for _ in range(most):
            right *= share
            saved += right * worth - cost
            best = max(best, saved)
            if right * worth < cost:
                break
        return best

    def goes_on(self, right: float, share: float, drafting: int, sequences: int) -> bool:
        """Whether a draft is worth a token more.

        Args:
            right: probability that all of it so far is.
            drafting: sequences that are drafted for in the same step of the draft model.
        """
        cost = self.drafting.of(drafting) / drafting + self.row_s(sequences)
        return right * share * self.worth(sequences) > cost

    def saving(self, share: float, most: int, sequences: int) -> float:
        """Seconds that drafting saves for each token that comes, beside not drafting at all, at the best length up to ``most``."""
        plain, cost = self.target.of(sequences) / sequences, self.drafting.of(sequences) / sequences + self.row_s(sequences)
        best, tokens, right = 0.0, 1.0, 1.0
        for length in range(1, most + 1):
            right *= share
            tokens += right
            best = max(best, ((tokens - 1) * plain - length * cost) / tokens)
        return best

    def reads(self, tokens: int, saved: float) -> bool:
        """Whether so many tokens that the draft model has not seen are worth reading.

        Args:
            saved: seconds that are expected to be saved then.
        """
        cost = self.drafting.of(tokens)
        return cost <= self.account and saved >= MARGIN * cost

    def due(self, sequences: int) -> bool:
        """A step without drafts is due, to compare with."""
        return self.target.age(sequences) >= CONTROL

    def tries(self, tokens: int, sequences: int) -> bool:
        """Whether a short draft that is not expected to pay may be tried, after so many tokens that the draft model has not seen.

        Half of what may be lost at the beginning is for those that are expected to pay.
        """
        cost = self.drafting.of(max(tokens, sequences)) + self.drafting.of(sequences) + 2 * self.row_s(sequences)
        return self.account >= cost + CREDIT_STEPS / 2 * self.target.of(1)

    def judge(self, probabilities: Sequence[float], right: int, *, wrong: bool) -> None:
        """Of a draft's tokens so many were right, and then one was ``wrong`` or there was none to compare.

        Args:
            probabilities: that the draft model gave each of them.
        """
        for place in range(right + wrong):
            self.confidence.learn(probabilities[place], right=place < right)
            self._seen += 1
            self.share = averaged(self.share, right=place < right, rate=max(_SHARED_RATE, 1 / self._seen))

    def settle(self, sequences: int, rows: int, drafted: int, accepted: int, draft_s: float, step_s: float) -> None:
        """A step is done in which so many sequences decoded.

        Args:
            rows: of the target's step.
            drafted, accepted: of them, tokens of the draft model, and how many of these were drawn too.
            draft_s, step_s: seconds of the draft model, and of the target's step.
        """
        self.target.learn(rows, step_s)
        plain = self.target.of(sequences)
        rows_s = max(0.0, self.target.of(sequences + drafted) - plain)  # where times jump about a wider step may seem to take less
        cost = draft_s + rows_s
        saved = accepted * plain / sequences
        if drafted:
            faster = (plain + saved) / max(plain + cost, 1e-9)
            self._speedup += (faster - self._speedup) * _RATE
        left = self.account + saved - cost + ALLOWANCE * (step_s + draft_s)
        self._account = min(left, SAVED_STEPS * self.target.of(1))


def averaged(share: float, *, right: bool, rate: float = _RATE) -> float:
    """The share of tokens that were right, with one more of them."""
    return share + (right - share) * rate
