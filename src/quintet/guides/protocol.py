"""What the event loop and the process that tries guides say to each other."""

from __future__ import annotations

TAKEN, REFUSED = "taken ", "refused "

END = b"\0"
"""Of an answer, which has no other: one without it was cut short."""

WALL_S = 5.0
"""Time for one guide on a machine that does not give it that much; asking again may help."""

TOO_COMPLEX = "is too complex"


class GuideError(ValueError):
    """The guide cannot be followed; ``str(error)`` is client-safe and says why, as a rule: "must ..."."""
