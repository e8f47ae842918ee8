"""How many tokens a step may compute, for those who wait for their next token meanwhile. Plain code over values."""

from __future__ import annotations

STEP_S = 0.1
"""How long a step should take while something decodes: more is a gap that a reader sees, less wastes work."""

BACKGROUND_S = 0.01
"""Likewise while all that is computed is in the background: whoever comes waits for the step to end, and its own first one takes longer."""

LEAST = 16
"""Tokens of a step that tell anything: the time of fewer is mostly that of reading the weights."""

_RATE = 0.25  # what the last step counts against all before it


class StepBudget:
    """The tokens a second that steps have computed lately."""

    def __init__(self) -> None:
        self._rate = 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        if tokens >= LEAST and seconds > 0:
            rate = tokens / seconds
            self._rate += (rate - self._rate) * (_RATE if self._rate else 1.0)

    def limit(self, most: int, *, seconds: float = STEP_S, halved: bool = False) -> int:
        """Tokens of a step that takes so long, at most ``most``, which it is too as long as nothing is known.

        Args:
            halved: something else takes as long in the same step.
        """
        return min(most, max(LEAST, int(self._rate * seconds / (1 + halved)))) if self._rate else most
