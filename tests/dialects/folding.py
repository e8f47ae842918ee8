"""The JSON body of events, as the server has it made."""

from __future__ import annotations

from collections.abc import Iterable

from quintet.dialects.base import Renderer
from quintet.events import Event


def fold(renderer: Renderer, events: Iterable[Event]) -> bytes:
    for event in events:
        renderer.add(event)
    made = b"".join(renderer.body())
    assert made == b"".join(renderer.body()), "it differs the second time"
    return made
