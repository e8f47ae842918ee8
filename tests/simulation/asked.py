"""A request that the engine was given, and what came of it, for who watches over what is promised (``invariants``)."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from tests.simulation.model import Told

from quintet.inputs.sequence import Prepared, PreparedSequence


@dataclass(slots=True)
class Asked:
    """See above.

    Args:
        due, at_last: when it must have ended: all excuses since then later, and whatever the excuses.
        expected: all events of each of its sequences, alone.
        at: of each sequence, the next event.
        open: its sequences that have not ended.
        called_off: sequences that its client aborted, ``None`` = all of it; until when, and all excuses later, they may go on.
        deaths: of engines that were computing it.
    """

    prepared: Prepared
    due: float
    at_last: float
    expected: list[list[Told]]
    at: list[int]
    open: set[int]
    called_off: dict[int | None, float] = field(default_factory=dict)
    told: bool = False
    deaths: int = 0
    _what: tuple[PreparedSequence, ...] = ()

    @property
    def what(self) -> tuple[PreparedSequence, ...]:
        """What it asks for, whoever asks and whatever the seeds."""
        if not self._what:
            sequences = self.prepared.sequences
            self._what = tuple(replace(one, salt=b"", sampling=replace(one.sampling, seed=0, seeded=False)) for one in sequences)
        return self._what

    @property
    def breaks_off(self) -> bool:
        """A death ends it."""
        return self.told and (self.prepared.shown or self.deaths > 1)

    def asks(self, token: int) -> bool:
        """It has this token in a prompt."""
        return any(token in one.tokens for one in self.prepared.sequences)


asking: ContextVar[list[Asked]] = ContextVar("asking")
"""What whoever asks has been given by the engine: a client finds its own requests here, whatever lies between it and the engine."""
