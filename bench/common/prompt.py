"""The prompts of every measurement: the same token ids for every engine."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

FIRST = 1000
"""The first token of prompt number ``serial`` is ``FIRST + serial % SPAN``: no two prompts share a prefix, so no cache helps."""
SPAN = 40_000
VOCAB = 49152


TEXT = Path(__file__).with_name("prompt.json")
"""An English text and its token ids."""


@cache
def _text() -> tuple[int, ...]:
    return tuple(json.loads(TEXT.read_text())["tokens"])


def prompt(serial: int, length: int) -> list[int]:
    """``length`` token ids of ordinary English (below 49152), another text for each ``serial``."""
    text = _text()
    start = serial * 37
    return [FIRST + serial % SPAN, *(text[(start + i) % len(text)] for i in range(length - 1))]
