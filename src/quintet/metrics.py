"""Counters, gauges and histograms, written in Prometheus' text format 0.0.4. Values only: no clock, no threads, no global registry."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence

Labels = tuple[str, ...]

MEDIA = "text/plain; version=0.0.4; charset=utf-8"

MOST_SERIES = 200
"""Most label values of one metric: whatever clients send, memory and scrapes stay bounded."""

OTHER = "other"


class Metric:
    """A name with labels, of which one value is kept per combination.

    Args:
        name: without the suffixes that the format adds (``_total``, ``_bucket``, ...).
        labels: names of the labels.
        fixed: labels that every line carries.
    """

    kind = "untyped"

    def __init__(self, name: str, help_: str, labels: Sequence[str] = (), fixed: Mapping[str, str] | None = None) -> None:
        self.name, self.help, self.labels = name, help_, tuple(labels)
        self._fixed = dict(fixed or {})
        self._seen: set[Labels] = set()

    def _key(self, labels: Labels) -> Labels:
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, got {labels}")
        if labels not in self._seen:
            if len(self._seen) >= MOST_SERIES:
                return (OTHER,) * len(labels)
            self._seen.add(labels)
        return labels

    def _line(self, name: str, key: Labels, value: float, **more: str) -> str:
        pairs = {**self._fixed, **dict(zip(self.labels, key, strict=True)), **more}
        inner = ",".join(f'{label}="{_escape(text)}"' for label, text in pairs.items())
        return f"{name}{{{inner}}} {_number(value)}" if inner else f"{name} {_number(value)}"

    def lines(self) -> list[str]:
        """Its lines of the text format, without the comments."""
        raise NotImplementedError


class Counter(Metric):
    """Only goes up."""

    kind = "counter"

    def __init__(self, name: str, help_: str, labels: Sequence[str] = (), fixed: Mapping[str, str] | None = None) -> None:
        super().__init__(name, help_, labels, fixed)
        self._values: dict[Labels, float] = {} if self.labels else {(): 0.0}

    def add(self, amount: float = 1, labels: Labels = ()) -> None:
        """Count ``amount`` more, which must not be negative."""
        if amount < 0:
            raise ValueError(f"{self.name} only goes up, got {amount}")
        key = self._key(labels)
        self._values[key] = self._values.get(key, 0.0) + amount

    def show(self, total: float) -> None:
        """Take over what another has counted since the start; only without labels."""
        self._values[()] = total

    def lines(self) -> list[str]:
        return [self._line(f"{self.name}_total", key, value) for key, value in self._values.items()]


class Gauge(Metric):
    """Goes up and down."""

    kind = "gauge"

    def __init__(self, name: str, help_: str, labels: Sequence[str] = (), fixed: Mapping[str, str] | None = None) -> None:
        super().__init__(name, help_, labels, fixed)
        self._values: dict[Labels, float] = {}

    def set(self, value: float, labels: Labels = ()) -> None:
        """The value from now on."""
        self._values[self._key(labels)] = value

    def lines(self) -> list[str]:
        return [self._line(self.name, key, value) for key, value in self._values.items()]


class Histogram(Metric):
    """Counts observations in buckets.

    Args:
        buckets: upper bounds, ascending; the last one, infinity, is added.
    """

    kind = "histogram"

    def __init__(
        self, name: str, help_: str, buckets: Sequence[float], labels: Sequence[str] = (), fixed: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(name, help_, labels, fixed)
        self._bounds = [*buckets, math.inf]
        self._counts: dict[Labels, list[int]] = {} if self.labels else {(): [0] * len(self._bounds)}
        self._sums: dict[Labels, float] = {} if self.labels else {(): 0.0}

    def observe(self, value: float, labels: Labels = ()) -> None:
        """Count one observation."""
        key = self._key(labels)
        counts = self._counts.setdefault(key, [0] * len(self._bounds))
        counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sums[key] = self._sums.get(key, 0.0) + value

    def show(self, counts: Sequence[int], total: float) -> None:
        """Take over what another has counted since the start, by bucket, and its sum; only without labels."""
        self._counts[()], self._sums[()] = list(counts), total

    def lines(self) -> list[str]:
        lines = []
        for key, counts in self._counts.items():
            total = 0
            for bound, count in zip(self._bounds, counts, strict=True):
                total += count
                lines.append(self._line(f"{self.name}_bucket", key, total, le=_number(bound)))
            lines.append(self._line(f"{self.name}_count", key, total))
            lines.append(self._line(f"{self.name}_sum", key, self._sums[key]))
        return lines


def render(metrics: Sequence[Metric]) -> str:
    """The text that Prometheus scrapes."""
    lines = []
    for metric in metrics:
        name = f"{metric.name}_total" if isinstance(metric, Counter) else metric.name
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}", *metric.lines()]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
