"""A page of metrics as ``quintet top`` reads it, and what two of them say of the time between. Nothing is taken to be there."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

MODEL = "model_name"
_TTFT, _GAP = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"


@dataclass(frozen=True, slots=True)
class Scrape:
    """A page.

    Args:
        at: seconds, of whatever clock.
        values: name of a series -> its labels and value.
    """

    at: float
    values: Mapping[str, list[tuple[dict[str, str], float]]]

    @classmethod
    def of(cls, page: str, at: float) -> Scrape:
        """
        Raises:
            ValueError: it is no page of metrics.
        """
        values: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                values[sample.name].append((sample.labels, sample.value))
        return cls(at, values)

    @property
    def models(self) -> list[str]:
        """Their names, in order."""
        found = (labels.get(MODEL) for series in self.values.values() for labels, _ in series)
        return list(dict.fromkeys(name for name in found if name is not None))

    def sum(self, name: str, **labels: str) -> float | None:
        """Of all series of this name with these labels; ``None`` = there is none."""
        found = [value for had, value in self.values.get(name, ()) if labels.items() <= had.items()]
        return sum(found) if found else None

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """The same, for each value of a label."""
        found: dict[str, float] = defaultdict(float)
        for had, value in self.values.get(name, ()):
            if label in had and labels.items() <= had.items():
                found[had[label]] += value
        return dict(found)


@dataclass(frozen=True, slots=True)
class Between:
    """What happened from one page to the next of a server. A counter that fell began anew: the server was started again."""

    before: Scrape
    now: Scrape

    @property
    def seconds(self) -> float:
        """Between the two."""
        return max(self.now.at - self.before.at, 1e-9)

    def rose(self, name: str, **labels: str) -> float | None:
        """By how much a counter did."""
        now = self.now.sum(name, **labels)
        return None if now is None else _rise(self.before.sum(name, **labels) or 0.0, now)

    def rate(self, name: str, **labels: str) -> float | None:
        """The same for a second."""
        rose = self.rose(name, **labels)
        return None if rose is None else rose / self.seconds

    def rates(self, name: str, label: str) -> dict[str, float]:
        """The same for each value of a label, without those that stood still."""
        before = self.before.by(name, label)
        rose = {value: _rise(before.get(value, 0.0), count) for value, count in self.now.by(name, label).items()}
        return {value: more / self.seconds for value, more in rose.items() if more > 0}

    def share(self, part: str, whole: str, **labels: str) -> float | None:
        """Of the rise of one counter in that of another; ``None`` = there was none."""
        of_part, of_whole = self.rose(part, **labels), self.rose(whole, **labels)
        return of_part / of_whole if of_part is not None and of_whole else None

    def quantile(self, share: float, name: str, **labels: str) -> float | None:
        """Of what a histogram took in meanwhile, as Prometheus reckons it: straight through the class that it falls in."""
        now, before = self.now.by(f"{name}_bucket", "le", **labels), self.before.by(f"{name}_bucket", "le", **labels)
        if any(count < before.get(bound, 0.0) for bound, count in now.items()):
            before = {}  # all classes of a histogram begin anew together
        counts = sorted((float(bound), count - before.get(bound, 0.0)) for bound, count in now.items())
        total = counts[-1][1] if counts else 0.0
        if total <= 0:
            return None
        low, below = 0.0, 0.0
        for bound, count in counts:
            if count >= share * total:
                return low if math.isinf(bound) else low + (bound - low) * (share * total - below) / max(count - below, 1e-9)
            low, below = bound, count
        return None


def _rise(before: float, now: float) -> float:
    return now - before if now >= before else now


@dataclass(frozen=True, slots=True)
class Look:
    """What there is to show.

    Args:
        server: of all models together; ``None`` = the server does not tell.
        models: by name.
    """

    server: dict[str, Any]
    models: dict[str, dict[str, Any]] = field(default_factory=dict)


def look(seen: Between) -> Look:
    """What two pages tell."""
    now = seen.now
    statuses = {status: round(rate, 2) for status, rate in sorted(seen.rates("http_requests_total", "status").items())}
    build = now.values.get("quintet:build_info")
    server = {
        "version": build[0][0].get("version") if build else None,
        "answers_per_s": statuses,
        "refused_per_s": {reason: round(rate, 2) for reason, rate in seen.rates("quintet:requests_refused_total", "reason").items()},
        "left_per_s": _rounded(seen.rate("quintet:client_disconnects_total")),
        "cpus": _rounded(seen.rate("process_cpu_seconds_total")),
        "memory_bytes": now.sum("process_resident_memory_bytes"),
        "machine_memory_used": _most(now, "quintet:memory_usage_perc"),
    }
    return Look(server, {name: dict(_model(seen, name)) for name in now.models})


def _model(seen: Between, name: str) -> Iterator[tuple[str, Any]]:
    now, of = seen.now, {MODEL: name}
    ready = now.sum("quintet:engine_ready", **of)
    yield "ready", None if ready is None else bool(ready)
    yield "loaded", _loaded(now, of)
    yield "running", now.sum("vllm:num_requests_running", **of)
    yield "waiting", now.sum("vllm:num_requests_waiting", **of)
    yield "choices_per_s", _rounded(seen.rate("vllm:request_success_total", **of))
    yield "generated_per_s", _rounded(_generated(seen, of))
    yield "prompt_per_s", _rounded(seen.rate("vllm:prompt_tokens_total", **of))
    yield "kv_cache_used", _rounded(now.sum("vllm:kv_cache_usage_perc", **of), 4)
    yield "cache_hits", _rounded(seen.share("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total", **of), 4)
    for label, metric in (("ttft", _TTFT), ("gap", _GAP)):
        for share in (0.5, 0.95):
            yield f"{label}_p{share * 100:.0f}_s", _rounded(seen.quantile(share, metric, **of), 4)
    yield "restarts", now.sum("quintet:engine_restarts_total", **of)
    yield "engine_cpus", _rounded(seen.rate("quintet:engine_process_cpu_seconds_total", **of))
    yield "engine_memory_bytes", now.sum("quintet:engine_process_resident_memory_bytes", **of)


def _generated(seen: Between, of: dict[str, str]) -> float | None:
    """Tokens per second. Here ``generation_tokens_total`` rises when a request ends; the engine's own counts rise with each step."""
    steps, prefill = seen.rate("vllm:iteration_tokens_total_sum", **of), seen.rate("quintet:prefill_tokens_total", **of)
    if steps is None or prefill is None:
        return seen.rate("vllm:generation_tokens_total", **of)
    return max(0.0, steps - prefill)


def _loaded(now: Scrape, of: dict[str, str]) -> bool | None:
    awake = now.sum("vllm:engine_sleep_state", sleep_state="awake", **of)
    return None if awake is None else bool(awake)


def _most(now: Scrape, name: str) -> float | None:
    return max((value for _, value in now.values.get(name, ())), default=None)


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)
