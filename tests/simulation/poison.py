"""How often a request may kill the engine before it is refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.simulation.clock import Violation

from quintet.inputs.sequence import PreparedSequence

MOST_POISONED = 4
"""Deaths that one tenant's request may cause before it is refused: two if it was told nothing before, else each counts half."""

WINDOW_S = 600.0
"""So long after the last it is given another chance."""


Asked = tuple[tuple[PreparedSequence, ...], str]
"""What is asked for, and who asks."""


class Poisonings:
    """Deaths of the engine over requests that kill it."""

    def __init__(self) -> None:
        self._deaths: defaultdict[Asked, list[float]] = defaultdict(list)

    def forget(self) -> None:
        """The front that knew of them is gone."""
        self._deaths.clear()

    def add(self, computed: Iterable[Asked], now: float) -> None:
        """The engine died over one of those that were being computed. Each counts: from then on they are tried one at a time.

        Raises:
            Violation: one of them should have been refused.
        """
        for one in set(computed):
            deaths = self._deaths[one]
            deaths[:] = [*(at for at in deaths if now - at < WINDOW_S), now]
            if len(deaths) > MOST_POISONED:
                raise Violation(f"quarantine: one request has killed the engine {len(deaths)} times")
