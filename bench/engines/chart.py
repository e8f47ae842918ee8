"""The table as a picture: of each column the engines' speeds as bars, in multiples of the fastest peer's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT = 760, 130, 70
BAR, GAP, TOP = 13, 16, 16
"""Pixels: a bar's height, the space between columns of the table, and that above everything."""

OURS = "#2f6fdb"
PEERS = ("#8a94a3", "#b08a5b", "#6f9a77", "#a07ba8", "#c0b04a")
STYLE = "text{font:12px system-ui,sans-serif;fill:#222}line{stroke:#999}@media(prefers-color-scheme:dark){text{fill:#ddd}}"


@dataclass(frozen=True, slots=True)
class Bar:
    """
    Args:
        value: tokens per second.
    """

    name: str
    value: float
    ours: bool


@dataclass(frozen=True, slots=True)
class Group:
    """The bars of one column; the fastest peer among them is the measure."""

    column: str
    bars: Sequence[Bar]

    @property
    def measure(self) -> float:
        return max((bar.value for bar in self.bars if not bar.ours), default=0.0)


def chart(title: str, groups: Sequence[Group]) -> str:
    """An SVG picture; empty if nothing can be compared."""
    groups = [group for group in groups if group.measure and any(bar.ours for bar in group.bars)]
    if not groups:
        return ""
    peers = dict.fromkeys(bar.name for group in groups for bar in group.bars if not bar.ours)
    colours = {name: PEERS[i % len(PEERS)] for i, name in enumerate(peers)}
    scale = (WIDTH - LEFT - RIGHT) / max(bar.value / group.measure for group in groups for bar in group.bars)
    parts, y = [_text(LEFT, TOP + 4, title)], TOP + 24
    for group in groups:
        parts += _bars(group, y, scale, colours)
        y += BAR * len(group.bars) + GAP
    one = LEFT + scale
    parts.append(f'<line x1="{one:.1f}" x2="{one:.1f}" y1="{TOP + 18}" y2="{y - GAP + 4}" stroke-dasharray="3 3"/>')
    for name, colour in {"Quintet": OURS, **colours}.items():
        parts += [_rect(LEFT, y, 11, 11, colour), _text(LEFT + 17, y + 10, name)]
        y += 18
    size = f'width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(title)}</title><style>{STYLE}</style>'
    return "\n".join([head, *parts, "</svg>\n"])


def _bars(group: Group, y: float, scale: float, colours: Mapping[str, str]) -> Iterator[str]:
    """One below the other from ``y`` on, the column's name on their left."""
    yield _text(LEFT - 8, y + BAR * len(group.bars) / 2 + 4, group.column, "end")
    for bar in group.bars:
        times = bar.value / group.measure
        said = f"{bar.name}: {bar.value:.0f} tokens/s"
        yield _rect(LEFT, y, times * scale, BAR - 2, OURS if bar.ours else colours[bar.name], said)
        if bar.ours:
            yield _text(LEFT + times * scale + 5, y + BAR - 3, f"{times:.2f} x")
        y += BAR


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _rect(x: float, y: float, width: float, height: float, colour: str, said: str = "") -> str:
    title = f"<title>{escape(said)}</title>" if said else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}">{title}</rect>'
