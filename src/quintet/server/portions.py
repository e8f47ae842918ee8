"""Which events of an engine step are rendered in one go: what takes long must not hold up the streams of all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from quintet.dialects.columns import CHARACTERS, IDS
from quintet.events import ChoiceDelta, Event

INLINE_ENTRIES = 512
"""More of a choice's log-probabilities at once are rendered in a thread; between so many of several choices others get their turn."""

Weight = Callable[[Event], float]
"""What it takes to render an end, see ``Renderer.weight``."""


class Portion(NamedTuple):
    """Events that are rendered in one go.

    Args:
        long: that takes long, as the entries of an echoed prompt do, or an end that tells them all again.
    """

    events: Sequence[Event]
    long: bool


def portions(batch: Sequence[Event], weight: Weight) -> Iterator[Portion]:
    """The events of an engine step, in order. What an end weighs is asked again once those before it are rendered."""
    if len(batch) + sum(work_of(event, weight) for event in batch) <= INLINE_ENTRIES:
        yield Portion(batch, long=False)
        return
    start, entries = 0, 0.0
    for at, event in enumerate(batch):
        more = work_of(event, weight) + 1
        if at > start and entries + more > INLINE_ENTRIES:
            yield Portion(batch[start:at], long=False)
            start, entries = at, 0.0
        entries += more
        if more > INLINE_ENTRIES:
            yield Portion(batch[at : at + 1], long=True)
            start, entries = at + 1, 0.0
    if start < len(batch):
        yield Portion(batch[start:], long=False)


def work_of(event: Event, weight: Weight) -> float:
    """What it takes to render an event, in entries of log-probabilities: these, a prompt's, its ids, and text, as an echo has."""
    if not isinstance(event, ChoiceDelta):
        return weight(event)
    return len(event.tokens) + len(event.scores or ()) + len(event.prompt or ()) / IDS + len(event.text) / CHARACTERS
