"""What the event loop and the engine's worker tell each other: small frozen values, so that the worker can live in any process."""

from __future__ import annotations

from dataclasses import dataclass

from quintet.backends.base import Counts, Pages
from quintet.events import TokenEvent
from quintet.inputs.capabilities import Capabilities
from quintet.inputs.sequence import PreparedSequence

Events = dict[int, list[TokenEvent]]
"""Request id -> its events of one step, in order."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Run a request's sequences, checked by ``prepare``.

    Args:
        at: seconds, on the clock that the worker uses too.
        tenant: who asks; tenants take turns.
    """

    request_id: int
    sequences: tuple[PreparedSequence, ...]
    at: float
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Abort:
    """End one sequence, or with ``seq`` ``None`` all, of a request."""

    request_id: int
    seq: int | None


@dataclass(frozen=True, slots=True)
class Compiled:
    """The guides of a request are; the worker tells itself."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Drop everything and end."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Share of loading done, 0 to 1."""

    share: float


@dataclass(frozen=True, slots=True)
class Ready:
    """Loading is done.

    Args:
        step_s: seconds that the largest step may take, estimated; 0 = not measured.
    """

    capabilities: Capabilities
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Started:
    """The step that begins now computes these requests, which the one before it did not: if it kills the worker, they are suspects."""

    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step was finished (or work was ended without one).

    Args:
        events: of each request, in order.
        running, waiting: sequences after it.
        counts: since this worker's start.
    """

    events: Events
    running: int
    waiting: int
    counts: Counts
    pages: Pages


@dataclass(frozen=True, slots=True)
class Died:
    """The worker is gone; nothing follows.

    Args:
        error: ``None`` after ``Stop``; a ``ModelError`` says in one client-safe line why the model cannot be loaded.
    """

    error: Exception | None


ToWorker = Submit | Abort | Compiled | Stop
FromWorker = Progress | Ready | Started | Stepped | Died
