"""Field kinds that only Fireworks has. See ``fields.Kind``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quintet.dialects.fields import Boolean, Integer, Kind, OneOf, wrong_type

EFFORTS = {"none": 0, "low": 3000, "medium": 12000, "high": 2**31 - 1}
"""Most thinking tokens. SDK, reasoning_effort: "`'low'` maps to a default token limit (~3000 tokens)"; the others have no number there."""


@dataclass(frozen=True, slots=True)
class LogprobsChoice:
    """``true`` or ``false``, or a number of alternatives; JSON tells them apart."""

    most: int
    type: str = "boolean | integer"

    @property
    def range(self) -> str:
        return f"or 0 to {self.most}"

    @property
    def forms(self) -> tuple[Kind[Any], ...]:
        return Boolean(), Integer(0, self.most)

    def read(self, name: str, value: object) -> bool | int:
        if isinstance(value, bool):
            return value
        if not isinstance(value, int | float):
            raise wrong_type(name, "a boolean or an integer", value)
        return Integer(0, self.most).read(name, value)


@dataclass(frozen=True, slots=True)
class Effort:
    """A word or a number of thinking tokens; read as that number."""

    type: str = "string | integer | boolean"
    range: str = "`none`, `low`, `medium`, `high`, or at least 0"
    forms: tuple[Kind[Any], ...] = (Boolean(), Integer(0), OneOf(tuple(EFFORTS)))

    def read(self, name: str, value: object) -> int:
        # SDK: "`true` becomes `'medium'`, and `false` becomes `'none'`".
        if isinstance(value, bool):
            return EFFORTS["medium" if value else "none"]
        if isinstance(value, str):
            return EFFORTS[OneOf(tuple(EFFORTS)).read(name, value)]
        if not isinstance(value, int | float):
            raise wrong_type(name, "a string, an integer or a boolean", value)
        return at_most_high(Integer(0).read(name, value))


def at_most_high(tokens: int) -> int:
    """No context holds so many, so a larger number says no more; and the engine takes none of more than 64 bits."""
    return min(tokens, EFFORTS["high"])
