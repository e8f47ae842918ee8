"""The report of ``quintet bench``: figures and charts for a terminal, the same as a picture, and all of it as JSON."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from quintet.conformance.report import hidden
from quintet.errors import counted
from quintet.load.client import Trace
from quintet.load.figures import gaps, nearest_rank

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 100
ROWS = 6
BUSY = 0.7
"""Share of a core above which the load generator itself may be what is slow."""

_printable = hidden("")  # a model's name is the server's, whoever's it is
_LATENCIES = (("first text", "ttft_ms"), ("between outputs", "gap_ms"), ("whole answer", "whole_ms"))
# rich's own has a font that is fetched from another host.
_PICTURE = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}</defs>
{chrome}<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of a load.

    Args:
        page: in whose words.
        settings: of the load.
        summary: see ``quintet.load.figures``.
        busy: share of a core that the load itself took.
    """

    url: str
    page: str
    model: str
    settings: dict[str, Any]
    summary: dict[str, Any]
    traces: Sequence[Trace]
    busy: float

    @property
    def rates(self) -> list[float]:
        """Tokens per second in each second of the load, by when their text came."""
        good = [trace for trace in self.traces if trace.good]
        zero = min((trace.due for trace in self.traces), default=0.0)
        last = max((trace.times[-1] for trace in good), default=zero)
        seconds = [0.0] * (int(last - zero) + 1)
        for trace in good:
            for at in trace.times:
                seconds[max(0, int(at - zero))] += trace.per_event
        return seconds

    def as_json(self) -> dict[str, Any]:
        """All figures."""
        prompt = sum(trace.prompt_tokens for trace in self.traces if trace.good)
        rates = [round(rate, 1) for rate in self.rates]
        more = {"prompt_tokens": prompt, "requests_per_s": self._per_second, "client_cpu": round(self.busy, 3)}
        return {
            "url": self.url,
            "page": self.page,
            "model": self.model,
            **self.settings,
            "summary": self.summary | more,
            "tokens_in_each_second": rates,
        }

    @property
    def _per_second(self) -> float:
        wall = self.summary["wall_s"]
        return round((self.summary["requests"] - self.summary["failed"]) / wall, 3) if wall else 0.0

    def shown(self) -> RenderableType:
        """Figures and charts."""
        told, load = self.summary, self.settings
        how = counted(load["clients"], "client") if load["clients"] else f"{counted(load['rate'], 'arrival')} per second"
        ended, tokens = counted(told["requests"] - told["failed"], "answer"), counted(told["tokens"], "token")
        parts: list[RenderableType] = [
            Text(
                f"{self.url} as {self.page}, model {_printable(self.model)}: {how}, {told['wall_s']:g} s, seed {load['seed']}", style="bold"
            ),
            Text(f"{ended}, {self._per_second:g} per second; {tokens}, {told['tokens_per_s']:g} per second"),
        ]
        if told["failed"]:
            kinds = ", ".join(f"{kind} {count}" for kind, count in told["failures"].items())
            parts.append(Text(f"{counted(told['failed'], 'request')} failed: {kinds}", style="red"))
        parts += [Text(), self._latencies(), Text(), *_over_time("tokens per second", self.rates)]
        good = [trace for trace in self.traces if trace.good]
        parts += [Text(), *_spread("time to the first text", [1e3 * (trace.times[0] - trace.due) for trace in good])]
        parts += [Text(), *_spread("between outputs", [1e3 * gap for trace in good for _, gap in gaps(trace)])]
        if self.busy > BUSY:
            parts.append(
                Text(f"The load itself took {self.busy:.0%} of a core: it may be what is slow here, not the server.", style="yellow")
            )
        return Group(*parts)

    def _latencies(self) -> Table:
        table = Table("milliseconds", *(("p50", "p90", "p99", "max")), box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for name, key in _LATENCIES:
            if found := self.summary[key]:
                table.add_row(name, *(f"{value:,.1f}" for value in found.values()))
        return table


def drawn(found: Measured, *, color: bool) -> str:
    """For a terminal, or for a file that has no colours."""
    console = Console(file=io.StringIO(), width=WIDTH, force_terminal=color, no_color=not color, highlight=False)
    with console.capture() as capture:
        console.print(found.shown())
    return capture.get()


def svg(found: Measured) -> str:
    """The same as a picture, in which nothing is of another host."""
    console = Console(file=io.StringIO(), width=WIDTH, record=True, highlight=False)
    console.print(found.shown())
    return console.export_svg(title="quintet bench", code_format=_PICTURE)


def _over_time(title: str, values: Sequence[float]) -> list[Text]:
    """A bar for each second, or for several."""
    group = -(-len(values) // (WIDTH - 12))
    means = [sum(values[at : at + group]) / len(values[at : at + group]) for at in range(0, len(values), group)]
    each = f", a column for {group} s" if group > 1 else ""
    return [Text(f"{title}{each}", style="dim"), *_columns(means, f"{max(means, default=0):,.0f}", "0")]


def _spread(title: str, values: Sequence[float]) -> list[Text]:
    """How many of so many milliseconds; the last column has all that are beyond the 99th percentile."""
    if len(values) < 2:
        return []
    ordered, width = sorted(values), WIDTH - 12
    low, high = ordered[0], max(nearest_rank(ordered, 99), ordered[0] + 1e-6)
    counts = [0.0] * (width + 1)
    for value in ordered:
        counts[min(width, int((value - low) / (high - low) * width))] += 1
    most = f"{high:,.1f} ms or more"
    scale = f"{low:,.1f} ms".ljust(width + 1 - len(most)) + most
    return [Text(title, style="dim"), *_columns(counts, f"{max(counts):,.0f}", "0"), Text(f"{'':10} {scale}", style="dim")]


def _columns(values: Sequence[float], top: str, bottom: str) -> list[Text]:
    """A chart of ``ROWS`` lines, with the values of its first and last at their left."""
    most = max(values, default=0.0) or 1.0
    steps = [round(value / most * ROWS * 8) for value in values]
    lines = []
    for row in reversed(range(ROWS)):
        label = top if row == ROWS - 1 else bottom if row == 0 else ""
        lines.append(Text(f"{label:>10} ") + Text("".join(BARS[min(8, max(0, step - 8 * row))] for step in steps), style="cyan"))
    return lines
