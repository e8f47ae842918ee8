"""Metrics that are read where they are counted, when somebody asks: of engines, processes, guides and the ledger."""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from quintet import __version__
from quintet.backends.base import BATCH_TOKENS, Health, State
from quintet.guides.check import Checked
from quintet.ledger.ledger import Ledger
from quintet.ledger.stats import BOUNDS

LABELS = ("model_name", "engine")
ENGINE = "0"


class Engines(Collector):
    """What the engines count themselves, also of requests that have not ended."""

    def __init__(self, healths: Mapping[str, Health]) -> None:
        self._healths = healths

    def collect(self) -> Iterator[Metric]:
        """The metrics, as they are now."""
        yield self._gauge("quintet:engine_ready", "1 while the engine takes work and makes sound progress; else 0.", _ready)
        yield self._gauge("quintet:replicas", "Replicas of the model that take work.", _replicas)
        yield self._gauge("vllm:num_requests_running", "Sequences in the batch.", lambda health: health.running)
        yield self._gauge("vllm:num_requests_waiting", "Sequences that wait for their turn.", lambda health: health.waiting)
        yield self._by("vllm:num_requests_waiting_by_reason", "The same by why they wait.", "reason", _WAITING)
        yield self._by("vllm:engine_sleep_state", "Awake: the model is loaded. All is discarded of one that is not.", "sleep_state", _SLEEP)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the KV cache's pages that sequences hold; 1 = all.", _usage)
        yield self._gauge("quintet:kv_cache_cached_pages", "Pages that nobody holds and that can be found again.", lambda h: h.pages.cached)
        yield self._gauge("quintet:memory_usage_perc", "Share of the memory of the machine or container that is in use; 1 = all.", _memory)
        yield self._shape()
        yield self._steps()
        yield self._restarts()
        for name, help_, count in _COUNTS:
            family = CounterMetricFamily(name, help_, labels=LABELS)
            for model, health in self._healths.items():
                family.add_metric((model, ENGINE), count(health))
            yield family
        yield from self._processes()

    def _gauge(self, name: str, help_: str, value: Callable[[Health], float]) -> Metric:
        family = GaugeMetricFamily(name, help_, labels=LABELS)
        for model, health in self._healths.items():
            family.add_metric((model, ENGINE), value(health))
        return family

    def _by(self, name: str, help_: str, label: str, values: Mapping[str, Callable[[Health], float]]) -> Metric:
        family = GaugeMetricFamily(name, help_, labels=(*LABELS, label))
        for model, health in self._healths.items():
            for word, value in values.items():
                family.add_metric((model, ENGINE, word), value(health))
        return family

    def _shape(self) -> Metric:
        """vLLM tells the cache's shape as labels; there, blocks are what pages are here."""
        labels = (*LABELS, "block_size", "num_gpu_blocks")
        family = GaugeMetricFamily("vllm:cache_config_info", "Tokens of a page, and how many pages there are.", labels=labels)
        for model, health in self._healths.items():
            family.add_metric((model, ENGINE, str(health.pages.size), str(health.pages.total)), 1)
        return family

    def _restarts(self) -> Metric:
        """All reasons from the start, so that rates can be taken."""
        labels = (*LABELS, "reason")
        family = CounterMetricFamily(
            "quintet:engine_restarts", "Times that an engine ended unasked, or could not be started.", labels=labels
        )
        for model, health in self._healths.items():
            for reason in _RESTARTS:
                family.add_metric((model, ENGINE, reason), getattr(health.incidents, reason))
        return family

    def _steps(self) -> Metric:
        family = HistogramMetricFamily(
            "vllm:iteration_tokens_total", "Tokens computed of prompts, and generated, in a step.", labels=LABELS
        )
        bounds = [*map(floatToGoString, BATCH_TOKENS), "+Inf"]
        for model, health in self._healths.items():
            family.add_metric((model, ENGINE), list(zip(bounds, accumulate(health.batches), strict=True)), health.counts.tokens)
        return family

    def _processes(self) -> Iterator[Metric]:
        """Those in which engines compute, by the names of the server's own with ``quintet:engine_`` before them."""
        families: dict[str, Metric] = {}
        for model, health in self._healths.items():
            pid = health.pid
            if pid is None:
                continue
            labels = dict(zip(LABELS, (model, ENGINE), strict=True))
            for metric in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]  # mypy sees no default
                name = f"quintet:engine_{metric.name}"
                family = families.setdefault(name, Metric(name, f"Of the engine's process. {metric.documentation}", metric.type))
                for sample in metric.samples:
                    family.add_sample(f"quintet:engine_{sample.name}", labels, sample.value)
        yield from families.values()


_WAITING: dict[str, Callable[[Health], float]] = {
    "capacity": lambda health: health.waiting - health.deferred,
    "deferred": lambda health: health.deferred,
}
_SLEEP: dict[str, Callable[[Health], float]] = {
    "awake": lambda health: float(health.state is not State.CLOSED),
    "weights_offloaded": lambda _: 0.0,
    "discard_all": lambda health: float(health.state is State.CLOSED),
}
_RESTARTS = ("crashed", "hung", "unstarted", "changed", "unsound")
_COUNTS: tuple[tuple[str, str, Callable[[Health], float]], ...] = (
    ("quintet:engine_steps", "Engine steps finished.", lambda h: h.counts.steps),
    ("quintet:prefill_tokens", "Tokens computed in prefill; neither cached ones nor those a sample shares.", lambda h: h.counts.prefilled),
    ("quintet:requests_quarantined", "Requests refused as the cause of engines' ends.", lambda h: h.incidents.quarantined),
    ("quintet:caches_shed", "Times that an engine gave back what it keeps, for want of memory.", lambda h: h.incidents.shed),
    ("quintet:requests_short_of_memory", "Requests refused for want of memory.", lambda h: h.incidents.short),
    ("quintet:guides_compiled", "Requests whose guides the engine compiled.", lambda h: h.counts.compiled),
    ("quintet:guide_compile_seconds", "Time that it took to compile them.", lambda h: h.counts.compile_s),
    ("quintet:guide_mask_seconds", "Processor time of the masks of guides.", lambda h: h.counts.mask_s),
    ("vllm:num_preemptions", "Times that a sequence lost its pages to others.", lambda h: h.counts.preempted),
    ("vllm:prefix_cache_queries", "Prompt tokens looked for in the prefix cache.", lambda h: h.counts.queried),
    ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda h: h.counts.found),
    ("vllm:spec_decode_num_drafts", "Times that tokens were drafted for a sequence.", lambda h: h.counts.drafts),
    ("vllm:spec_decode_num_draft_tokens", "Tokens drafted.", lambda h: h.counts.drafted),
    ("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were drawn too.", lambda h: h.counts.accepted),
    ("quintet:draft_model_tokens", "Of the drafted tokens, the draft model's.", lambda h: h.counts.drafted_by_model),
    ("quintet:draft_model_accepted_tokens", "Of these, those that were drawn too.", lambda h: h.counts.accepted_by_model),
)


class Build(Collector):
    """What runs."""

    def collect(self) -> Iterator[Metric]:
        """The metric; it never changes."""
        family = GaugeMetricFamily("quintet:build_info", "What runs, as labels.", labels=("version", "python", "machine"))
        family.add_metric((__version__, platform.python_version(), platform.machine()), 1)
        yield family


class Durations:
    """Seconds, counted by buckets: what the library's histogram counts, in a fifth of its time. For what each token of a stream is.

    Args:
        bounds: the buckets' inclusive upper ends, rising.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count one, or as many that took so long each."""
        self.counts[bisect_left(self._bounds, seconds)] += count
        self.sum += seconds * count


class DurationsByModel(Collector):
    """A histogram with ``Durations`` for each model."""

    def __init__(self, name: str, help_: str, bounds: Sequence[float]) -> None:
        self._name, self._help, self._bounds = name, help_, bounds
        self._models: dict[str, Durations] = {}

    def of(self, model: str) -> Durations:
        """Those of a model."""
        return self._models.setdefault(model, Durations(self._bounds))

    def collect(self) -> Iterator[Metric]:
        """The metrics, as they are now."""
        family = HistogramMetricFamily(self._name, self._help, labels=LABELS)
        ends = [*map(floatToGoString, self._bounds), "+Inf"]
        for model, durations in self._models.items():
            family.add_metric((model, ENGINE), list(zip(ends, accumulate(durations.counts), strict=True)), durations.sum)
        yield family


class GuideChecks(Collector):
    """What became of schemas and grammars before their requests began."""

    def __init__(self, checked: Checked) -> None:
        self._checked = checked

    def collect(self) -> Iterator[Metric]:
        """The metrics, as they are now."""
        checked = self._checked
        family = CounterMetricFamily("quintet:guide_checks", "Guides that requests asked for.", labels=("outcome",))
        for outcome in ("taken", "refused", "failed", "known"):
            family.add_metric((outcome,), getattr(checked, outcome))
        yield family
        yield CounterMetricFamily("quintet:guide_check_seconds", "Time from asking to the answer, of those not known yet.", checked.seconds)


class LedgerStats(Collector):
    """What the ledger counts of itself."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        """The metrics, as they are now."""
        stats = self._ledger.stats
        yield CounterMetricFamily("quintet:ledger_rows_written", "Rows of ended requests that are on the disk.", stats.written)
        yield CounterMetricFamily("quintet:ledger_requests_spooled", "Requests served while their row was only in memory.", stats.spooled)
        yield CounterMetricFamily("quintet:ledger_requests_refused", "Requests refused as their row could not be written.", stats.refused)
        yield CounterMetricFamily("quintet:ledger_files_lost", "Times that the file was found deleted or replaced.", stats.lost)
        yield GaugeMetricFamily("quintet:ledger_rows_spooled", "Rows only in memory as they cannot be written.", self._ledger.spooled)
        buckets = list(zip([*map(floatToGoString, BOUNDS), "+Inf"], accumulate(stats.commits), strict=True))
        yield HistogramMetricFamily("quintet:ledger_write_seconds", "Time of a commit.", buckets, stats.seconds)


def _ready(health: Health) -> float:
    return float(health.state is State.READY)


def _replicas(health: Health) -> float:
    return health.replicas * _ready(health)


def _memory(health: Health) -> float:
    return health.memory


def _usage(health: Health) -> float:
    return health.pages.used / health.pages.total if health.pages.total else 0.0
