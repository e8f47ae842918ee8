"""Arrays of values of a kind. See ``fields.Kind``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from quintet.dialects.fields import Kind, T, wrong_type
from quintet.errors import BadRequest, counted


@dataclass(frozen=True, slots=True)
class ListOf(Generic[T]):
    """An array of at least ``least`` and at most ``most`` values of a kind."""

    kind: Kind[T]
    most: int
    least: int = 0

    @property
    def type(self) -> str:
        return f"array<{self.kind.type}>"

    @property
    def range(self) -> str:
        count = f"{self.least} to {self.most}" if self.least else f"up to {self.most}"
        return count + (f", each {self.kind.range}" if self.kind.range else "")

    def read(self, name: str, value: object) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise wrong_type(name, "an array", value)
        if not self.least <= len(value) <= self.most:
            rule = f"at most {counted(self.most, 'item')}" if len(value) > self.most else f"at least {counted(self.least, 'item')}"
            raise BadRequest(name, f"must have {rule}", counted(len(value), "item"))
        return tuple(self.kind.read(f"{name}[{index}]", one) for index, one in enumerate(value))
