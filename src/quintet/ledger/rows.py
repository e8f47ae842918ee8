"""A request in the ledger. Plain code over values; never a prompt, a text or a key."""

from __future__ import annotations

import enum
from typing import NamedTuple

LIFE_BITS = 40
"""A row's number is that of its process's life, and below it a count."""


class State(enum.StrEnum):
    """How a request stands."""

    OPEN = "open"  # it runs, or the process that ran it has not been found dead yet
    COMPLETED = "completed"  # its answer was sent to the end
    CANCELLED = "cancelled"  # its client left before that
    FAILED = "failed"  # it ended with an error
    INCOMPLETE = "incomplete"  # the process that ran it died; the counts are the last that were written


class Row(NamedTuple):
    """A request as it stands; its fields are the columns.

    Args:
        number: unique for ever, see ``Store.begin``.
        id: the answer's, without the prefix that its dialect gives it.
        key: ``Caller.id``; empty without keys.
        model: its first name.
        n: choices asked for, of each prompt.
        arrived: Unix time in seconds.
        first, total: seconds from then to the first text and to the end, on a clock that never jumps; ``None`` = not yet, or never.
        prompt, completion, cached, reasoning: tokens so far, see ``Usage``.
        finish: why the choice ended that ended first; empty = none has.
        status: of HTTP; 0 = none was sent yet, 499 = the client left before.
    """

    number: int
    id: str
    key: str
    model: str
    dialect: str
    n: int
    arrived: float
    first: float | None = None
    total: float | None = None
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    state: State = State.OPEN
    finish: str = ""
    status: int = 0
