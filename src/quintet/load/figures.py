"""What the traces of a load come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from quintet.load.client import Trace


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 (nearest rank) and max of seconds, in milliseconds; empty without values."""
    ordered = sorted(values)
    names = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    return {name: round(1e3 * nearest_rank(ordered, percent), 2) for name, percent in names.items()} if ordered else {}


def nearest_rank(ordered: Sequence[float], percent: int) -> float:
    """The least of some values in ascending order that so many per cent of them, from 1 to 100, do not exceed."""
    return ordered[-(-len(ordered) * percent // 100) - 1]  # whole numbers: a float a little too large would be the next value


def gaps(trace: Trace) -> Iterator[tuple[float, float]]:
    """``(when it ended, seconds)`` of each wait between two events with text."""
    return ((late, late - early) for early, late in zip(trace.times, trace.times[1:], strict=False))


def steady_rate(traces: Sequence[Trace]) -> float:
    """Tokens per second while every stream was decoding: from the last first token to the first last one.

    Of each stream what counts are the tokens between its first and its last arrival in that time: a server may send those of several
    steps together, and some that were made by then are on no way yet.

    Returns:
        The sum of all streams; 0 if there was no such time, as when requests follow one another.
    """
    if not traces or not all(trace.times for trace in traces):
        return 0.0
    start, stop = max(trace.times[0] for trace in traces), min(trace.times[-1] for trace in traces)
    return sum(_rate(trace, start, stop) for trace in traces) if stop > start else 0.0


def _rate(trace: Trace, start: float, stop: float) -> float:
    """Tokens per second of a stream between its first and its last arrival from ``start`` to ``stop``; if all are one, over that time."""
    times = [at for at in trace.times if start <= at <= stop]
    if not times:
        return 0.0
    later = sum(at > times[0] for at in times)
    if not later:
        return trace.per_event * len(times) / (stop - start)
    return trace.per_event * later / (times[-1] - times[0])


def wall(traces: Sequence[Trace]) -> float:
    """Seconds from the first request to the last answer's end."""
    return max((trace.end for trace in traces), default=0.0) - min((trace.due for trace in traces), default=0.0)


def summary(traces: Sequence[Trace]) -> dict[str, object]:
    """Counts, rates (tokens per second) and latencies (milliseconds); failed requests count in ``failed`` only."""
    good, seconds = [trace for trace in traces if trace.good], wall(traces)
    tokens = sum(round(trace.per_event * len(trace.times)) for trace in good)
    return {
        "requests": len(traces),
        "failed": len(traces) - len(good),
        "failures": dict(Counter(trace.failure for trace in traces if not trace.good).most_common()),
        "errors": sorted({trace.error or "no text" for trace in traces if not trace.good})[:3],
        "tokens": tokens,
        "wall_s": round(seconds, 3),
        "tokens_per_s": round(tokens / seconds, 2) if seconds else 0.0,
        "steady_tokens_per_s": round(steady_rate(good), 2),
        "ttft_ms": percentiles([trace.times[0] - trace.due for trace in good]),
        "gap_ms": percentiles([gap for trace in good for _, gap in gaps(trace)]),
        "whole_ms": percentiles([trace.end - trace.due for trace in good]),
    }


def to_json(traces: Sequence[Trace]) -> list[dict[str, object]]:
    """Traces for another process: times from the first one's, bodies as text."""
    zero = min((trace.due for trace in traces), default=0.0)
    entries = []
    for trace in traces:
        times = [round(at - zero, 6) for at in trace.times]
        moved = {"due": round(trace.due - zero, 6), "end": round(trace.end - zero, 6), "times": times}
        entries.append(asdict(trace) | moved | {"body": trace.body.decode(errors="replace")})
    return entries


def from_json(entries: Sequence[Mapping[str, object]]) -> list[Trace]:
    """What ``to_json`` made."""
    return [Trace(**{**entry, "body": str(entry["body"]).encode()}) for entry in entries]  # type: ignore[arg-type]
