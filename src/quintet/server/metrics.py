"""Prometheus metrics, under vLLM's names where we measure the same, with one set of labels per model.

The registry is ours alone: nothing that another library has registered is in it. What is counted elsewhere is in ``collectors``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from quintet.backends.base import Health
from quintet.guides.check import Checked
from quintet.ledger.ledger import Ledger
from quintet.server.collectors import ENGINE, LABELS, Build, DurationsByModel, Engines, GuideChecks, LedgerStats
from quintet.server.refusals import REASONS

MEDIA = CONTENT_TYPE_PLAIN_0_0_4

MOST_SERIES = 200
"""Most combinations of labels of the answers' counter: whatever clients send, memory and scrapes stay bounded."""

OTHER = "other"

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_GAP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_CHOICES = (1, 2, 5, 10, 20)
_FINISHED = ("stop", "length", "abort", "error", "content_filter")
_LEFT = ("before_answer", "in_answer")

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second line per series, when it was made: nobody asks for it


class Telemetry:
    """All metrics of a server.

    Args:
        models: their public names; their counters stand at zero from the start, so that rates can be taken.
        moderating: those of them that judge texts.
        clock: seconds, monotonic.
        ledger, guides: told of too, if they are there.
    """

    def __init__(
        self,
        models: Iterable[str],
        clock: Callable[[], float],
        ledger: Ledger | None = None,
        moderating: Sequence[str] = (),
        guides: Checked | None = None,
    ) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(Build())
        if ledger is not None:
            self._registry.register(LedgerStats(ledger))
        if guides is not None:
            self._registry.register(GuideChecks(guides))
        self._families = _Families(self._registry)
        self._models = {model: ModelMetrics(self._families, model, clock) for model in models}
        self._moderation = _Moderation(self._registry, moderating) if moderating else None
        self._http = Counter("http_requests", "Answers.", ("method", "handler", "status"), registry=self._registry)
        self._seconds = _histogram(
            self._registry, "http_request_duration_seconds", "From arrival to the end of the answer.", _LATENCY, ("handler",)
        )
        first = [("POST", "/completions", status) for status in ("2xx", "4xx", "5xx")]  # there from the start: the first 5xx is a rate too
        self._answers: dict[tuple[str, str, str], Counter] = {labels: self._http.labels(*labels) for labels in first}
        self._seconds.labels("/completions")
        refused = Counter(
            "quintet:requests_refused", "Requests that got an error in place of an answer.", ("reason",), registry=self._registry
        )
        self._refused = {reason: refused.labels(reason) for reason in REASONS.values()}
        left = Counter(
            "quintet:client_disconnects", "Clients that left before their answer was complete.", ("when",), registry=self._registry
        )
        self._left = {when: left.labels(when) for when in _LEFT}

    def of(self, model: str) -> ModelMetrics:
        """Those of a model; its public name is the server's word, never what a client wrote."""
        if model not in self._models:
            self._models[model] = ModelMetrics(self._families, model, self._clock)
        return self._models[model]

    def judged(self, model: str) -> Callable[[str, str, float], None]:
        """Counts the judgements of a moderation model; see ``moderation.judge.Told``."""
        assert self._moderation is not None
        return partial(self._moderation.judged, model)

    def scrape(self, healths: Mapping[str, Health]) -> bytes:
        """The text for Prometheus.

        Args:
            healths: of each model's engine, by the model's public name.
        """
        engines = CollectorRegistry()
        engines.register(Engines(healths))
        return generate_latest(engines) + generate_latest(self._registry)

    def refused(self, reason: str) -> None:
        """Count a request that was refused; see ``refusals``."""
        self._refused[reason].inc()

    def left(self, when: str) -> None:
        """Count a client that left, ``before_answer`` or ``in_answer``."""
        self._left[when].inc()

    def answered(self, method: str, handler: str, status: int, seconds: float) -> None:
        """Count an answer, its status by its class, as vLLM's dashboards ask for it; the labels are words of ours, never the client's."""
        labels = (method, handler, f"{status // 100}xx")
        if labels not in self._answers and len(self._answers) >= MOST_SERIES:
            labels = (OTHER, OTHER, OTHER)
        if labels not in self._answers:
            self._answers[labels] = self._http.labels(*labels)
        self._answers[labels].inc()
        self._seconds.labels(handler).observe(seconds)


class _Moderation:
    """What moderation models did."""

    def __init__(self, registry: CollectorRegistry, models: Sequence[str]) -> None:
        labels = (*LABELS, "text", "verdict")
        self._count = Counter("quintet:moderation_judgements", "Texts judged, or not to be judged.", labels, registry=registry)
        self._seconds = _histogram(registry, "quintet:moderation_seconds", "Time of a judgement.", _GAP, LABELS)
        for model in models:
            self._seconds.labels(model, ENGINE)
            for text, verdict in product(("prompt", "output"), ("safe", "unsafe", "failed")):
                self._count.labels(model, ENGINE, text, verdict)

    def judged(self, model: str, text: str, verdict: str, seconds: float) -> None:
        """Count a judgement."""
        self._count.labels(model, ENGINE, text, verdict).inc()
        self._seconds.labels(model, ENGINE).observe(seconds)


class _Families:
    """The metrics that each model has."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help_: str, *labels: str) -> Counter:
            return Counter(name, help_, (*LABELS, *labels), registry=registry)

        def histogram(name: str, help_: str, buckets: Sequence[float]) -> Histogram:
            return _histogram(registry, name, help_, buckets, LABELS)

        self.prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of ended requests.")
        self.cached = counter("vllm:prompt_tokens_cached", "Prompt tokens of ended requests that were not computed for them.")
        self.generation_tokens = counter("vllm:generation_tokens", "Tokens generated for ended requests.")
        self.source = counter("vllm:prompt_tokens_by_source", "Prompt tokens of ended requests by where they came from.", "source")
        self.success = counter("vllm:request_success", "Choices by why they ended.", "finished_reason")
        self.first = histogram("vllm:time_to_first_token_seconds", "From arrival to the first text.", _TTFT)
        self.gap = DurationsByModel("vllm:inter_token_latency_seconds", "Between the outputs of a request.", _GAP)
        registry.register(self.gap)
        self.per_token = histogram(
            "vllm:request_time_per_output_token_seconds", "Decode time by the tokens of the longest choice after its first.", _GAP
        )
        self.latency = histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", _LATENCY)
        self.queue = histogram("vllm:request_queue_time_seconds", "Waiting for the first step.", _LATENCY)
        self.inference = histogram("vllm:request_inference_time_seconds", "From the first step to the last token.", _LATENCY)
        self.prefill = histogram("vllm:request_prefill_time_seconds", "From the first step to the first token.", _LATENCY)
        self.decode = histogram("vllm:request_decode_time_seconds", "From the first token to the last.", _LATENCY)
        self.prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self.generation = histogram("vllm:request_generation_tokens", "Generated tokens of a request.", _TOKENS)
        self.longest = histogram("vllm:request_max_num_generation_tokens", "Generated tokens of a request's longest choice.", _TOKENS)
        self.computed = histogram("vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request that no cache had.", _TOKENS)
        self.n = histogram("vllm:request_params_n", "n of a request.", _CHOICES)
        self.max_tokens = histogram(
            "vllm:request_params_max_tokens", "max_tokens of a request, or its dialect's default, if it has either.", _TOKENS
        )


class ModelMetrics:
    """One model's, bound to its labels, so that an observation looks nothing up."""

    def __init__(self, families: _Families, model: str, clock: Callable[[], float]) -> None:
        labels = (model, ENGINE)
        self.clock = clock
        self._reasons = {reason: families.success.labels(*labels, reason) for reason in _FINISHED}
        self._computed = families.source.labels(*labels, "local_compute")
        self._found = families.source.labels(*labels, "local_cache_hit")
        families.source.labels(*labels, "external_kv_transfer")  # vLLM's; there is none here
        self._prompt_tokens = families.prompt_tokens.labels(*labels)
        self._cached = families.cached.labels(*labels)
        self.generation_tokens = families.generation_tokens.labels(*labels)
        self.first = families.first.labels(*labels)
        self.gap = families.gap.of(model)
        self.per_token = families.per_token.labels(*labels)
        self.latency = families.latency.labels(*labels)
        self.queue = families.queue.labels(*labels)
        self.inference = families.inference.labels(*labels)
        self.prefill = families.prefill.labels(*labels)
        self.decode = families.decode.labels(*labels)
        self._prompt = families.prompt.labels(*labels)
        self._prompt_computed = families.computed.labels(*labels)
        self.generation = families.generation.labels(*labels)
        self.longest = families.longest.labels(*labels)
        self.n = families.n.labels(*labels)
        self.max_tokens = families.max_tokens.labels(*labels)

    def done(self, reason: str) -> None:
        """Count a choice by why it ended."""
        self._reasons[reason].inc()

    def prompted(self, tokens: int, cached: int) -> None:
        """Count the prompt tokens of a request; ``cached`` of them were not computed for it."""
        self._prompt_tokens.inc(tokens)
        self._cached.inc(cached)
        self._found.inc(cached)
        self._computed.inc(tokens - cached)
        self._prompt.observe(tokens)
        self._prompt_computed.observe(tokens - cached)


def _histogram(registry: CollectorRegistry, name: str, help_: str, buckets: Sequence[float], labels: Sequence[str]) -> Histogram:
    return Histogram(name, help_, labels, buckets=buckets, registry=registry)
