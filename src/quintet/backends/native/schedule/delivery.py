"""When the front is told of tokens. Plain code over values.

Telling costs the front as much for a step as for several: it is woken, and on a machine whose cores all compute, what it reads has left
their caches by then. So tokens that nobody waits for are kept back and told together, for a fraction of a second and in their order;
whatever begins or ends something, and a prompt's own tokens, are told at once.

===========  ===============================================================================================
``Urgency``  its tokens are told
===========  ===============================================================================================
``NOW``      with their step
``SOON``     with the first step that ends after ``FRAME_S``; while ``CROWD`` sequences or more run, after ``CROWD_S``
``END``      with the first step that ends after ``END_S``
===========  ===============================================================================================

A step is told when the next one has begun, beside the threads that compute (docs/decisions/0065-between-two-steps.md), but for what is
``urgent``, or where no step follows.

What a client gets are the same bytes, an event a token; only when it gets them differs. vLLM knows the same as ``--stream-interval``.
"""

from __future__ import annotations

from dataclasses import dataclass

from quintet.backends.native.wire.messages import EventRow, Events, Row, ScoredRow, TokenRow
from quintet.inputs.sequence import Urgency

FRAME_S = 0.008
"""125 times a second: no screen shows more. Most models' steps take longer, and each is told."""

CROWD = 16
"""From so many sequences on, a stream's client reads no faster than ``CROWD_S`` anyway."""

CROWD_S = 0.04
"""25 times a second is what eyes take for steady."""

END_S = 0.25
"""A fraction of any answer that is worth counting; what the front does with it then holds up others for some milliseconds."""

SILENCE_S = 0.1
"""Steps are told that often, whether there are events or not: whoever supervises sees them pass, and the load is known."""


@dataclass(slots=True)
class _Patient:
    """A request whose tokens may be kept back.

    Args:
        open: sequences that have not ended.
    """

    urgency: Urgency
    open: int

    def ends_with(self, rows: list[Row]) -> bool:
        """Whether the last of its sequences ends with these."""
        self.open -= sum(isinstance(row, EventRow) and row.finish is not None for row in rows)
        return self.open <= 0


class Delivery:
    """Keeps events back.

    Args:
        now: seconds, monotonic; as everywhere here.
    """

    def __init__(self, now: float) -> None:
        self._patient: dict[int, _Patient] = {}  # those that have not ended; what is not here is told of each step
        self._kept: dict[Urgency, Events] = {Urgency.SOON: {}, Urgency.END: {}}
        self._told = {Urgency.SOON: now, Urgency.END: now}
        self._said = now

    def begin(self, request_id: int, urgency: Urgency, sequences: int) -> None:
        """Events of so many sequences will come."""
        if urgency is not Urgency.NOW:
            self._patient[request_id] = _Patient(urgency, sequences)

    def step(self, events: Events, running: int, now: float, *, even_empty: bool = False) -> Events | None:
        """Take a step's events.

        Args:
            running: sequences after it.
            even_empty: it is told whether there are events or not.

        Returns:
            What is to be told now, with all that was kept back of the same requests; ``None``: nothing is to be said.
        """
        due = self._due(running, now)
        told: Events = {}
        for request_id, rows in events.items():
            patient = self._patient.get(request_id)
            if patient is None:
                told[request_id] = rows
                continue
            kept = self._kept[patient.urgency]
            kept.setdefault(request_id, []).extend(rows)
            if _urgent(rows):
                told[request_id] = kept.pop(request_id)
                if patient.ends_with(rows):
                    del self._patient[request_id]
        for urgency in due:
            told |= self._take(urgency, now)
        if not (told or even_empty) and now - self._said < SILENCE_S:
            return None
        self._said = now
        return told

    def streams(self, now: float) -> Events:
        """What was kept back of streams; it is to be told now."""
        return self._take(Urgency.SOON, now)

    def _due(self, running: int, now: float) -> list[Urgency]:
        late = {Urgency.SOON: CROWD_S if running >= CROWD else FRAME_S, Urgency.END: END_S}
        return [urgency for urgency, seconds in late.items() if now - self._told[urgency] >= seconds]

    def _take(self, urgency: Urgency, now: float) -> Events:
        taken, self._kept[urgency] = self._kept[urgency], {}
        self._told[urgency] = now
        return taken


def urgent(events: Events) -> bool:
    """Whether some of them are to be told before anything else is computed."""
    return any(_urgent(rows) for rows in events.values())


def drawn_tokens(events: Events) -> int:
    """Tokens that were drawn."""
    rows = (row for batch in events.values() for row in batch)
    return sum(row.token >= 0 and (isinstance(row, TokenRow) or not row.prompt) for row in rows)


def merge(events: Events, more: Events) -> None:
    """Put later events behind those of the same requests."""
    if not events:  # as in most steps
        events.update(more)
        return
    for request_id, batch in more.items():
        events.setdefault(request_id, []).extend(batch)


def _urgent(rows: list[Row]) -> bool:
    """Whether anything begins or ends, or is of the prompt."""
    return any(isinstance(row, EventRow) or (isinstance(row, ScoredRow) and row.prompt) for row in rows)
