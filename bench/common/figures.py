"""What both reports are made of: the machine, comparisons and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HTTP_SHARE = 0.85
"""Share of the core's speed that must be left over HTTP with streaming."""

Limits = Mapping[str, Mapping[str, float | str]]
"""What ``machine.cpp`` prints: by kind, how it was measured and the rate with so many threads."""

BUSY = 0.5
"""Load average above which something else was running."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine. ``limits_reason``: why its limits cannot be measured."""

    cpu: str
    flags: str
    cores: int
    load_before: tuple[float, float, float]
    limits_reason: str = ""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One comparison.

    Args:
        needed: what is required; ``None`` = nothing.
        at_most: it must not be more; else not less.
    """

    what: str
    column: str
    value: float
    needed: float | None
    to: str
    at_most: bool = False

    @property
    def needed_text(self) -> str:
        return "" if self.needed is None else f"{'<=' if self.at_most else '>='} {self.needed:.2f}"

    @property
    def verdict(self) -> str:
        if self.needed is None:
            return ""
        return "pass" if (self.value <= self.needed if self.at_most else self.value >= self.needed) else "SHORT"


def best_of(limits: Sequence[Limits]) -> Limits:
    """The highest of each rate that was measured more than once."""
    best: dict[str, dict[str, float | str]] = {}
    for measured in limits:
        for name, rates in measured.items():
            kept = best.setdefault(name, {})
            for key, rate in rates.items():
                known = kept.get(key, rate)
                kept[key] = rate if isinstance(rate, str) or isinstance(known, str) else max(known, rate)
    return best


def pick(detail: dict[str, object], path: Sequence[str]) -> float:
    """A number in a summary; 0 where there is none (no gaps in a stream of one token)."""
    value: object = detail
    for name in path:
        value = value.get(name, 0.0) if isinstance(value, dict) else 0.0
    return float(value) if isinstance(value, int | float) else 0.0


def table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table, padded so that it reads well in a terminal too."""
    rows = [list(heads), *map(list, body)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(text.ljust(width) for text, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(rows[0]), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows[1:])])
