"""Spans and metrics for an OpenTelemetry collector, over OTLP (HTTP, protobuf), in the names of the GenAI conventions.

Imported only where it is asked for. A span is made when its completion has ended, and put into a bounded queue, from which a thread of the
library sends; a collector that is slow or away costs spans and nothing else. No prompt, text, key, user or path is in any of it.

https://opentelemetry.io/docs/specs/semconv/gen-ai/ ; ``llm_request`` and ``gen_ai.latency.*`` are vLLM's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from quintet import __version__
from quintet.server.call import Call
from quintet.server.telemetry import Observer

Value: TypeAlias = "str | int | float | bool | tuple[str, ...]"

NAME, PROVIDER, OPERATION = "llm_request", "quintet", "text_completion"
_CARRIED = ("traceparent", "tracestate")  # W3C's
MOST_CHARACTERS = 256
"""Of a model's name as a client wrote it; a pattern may have found a long one."""

# Upper ends of histograms' buckets, in seconds: the conventions' for each metric.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_EACH = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


class OpenTelemetry:
    """See ``Tracing``. What is not said here the standard variables ``OTEL_*`` say: sampler, limits, headers, resource.

    Args:
        endpoint: base URL of a collector; empty = that of ``OTEL_EXPORTER_OTLP_ENDPOINT`` or of the variable for each signal.
        now: Unix time in seconds.
        traces, metrics: whether these are sent.
    """

    def __init__(self, endpoint: str, now: Callable[[], float], *, traces: bool = True, metrics: bool = True) -> None:
        self._now = now
        resource = _resource()
        base = endpoint.rstrip("/")
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        if traces:
            exporter = OTLPSpanExporter(endpoint=f"{base}/v1/traces" if base else None)
            self._tracers.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._tracers.get_tracer("quintet", __version__) if traces else None
        sent = OTLPMetricExporter(endpoint=f"{base}/v1/metrics" if base else None) if metrics else None
        readers = [PeriodicExportingMetricReader(sent)] if sent is not None else []
        self._meters = MeterProvider(readers, resource, shutdown_on_exit=False)
        self._context = TraceContextTextMapPropagator()
        self._duration = self._histogram("gen_ai.server.request.duration", "From arrival to the end of the answer.", _SECONDS)
        self._first = self._histogram("gen_ai.server.time_to_first_token", "From arrival to the first text.", _FIRST)
        self._each = self._histogram("gen_ai.server.time_per_output_token", "Decode time by the tokens after the first.", _EACH)

    def ended(self, call: Call, status: int, seconds: float) -> None:
        """See ``Tracing``."""
        observer = call.observers[-1] if call.observers else None
        shared = dict(_shared(call, status, observer))
        self._measure(shared, observer, seconds)
        if self._tracer is None:
            return
        end = int(self._now() * 1e9)
        headers = call.http.headers
        context = self._context.extract({name: headers.get(name) for name in _CARRIED if name in headers})
        span = self._tracer.start_span(NAME, context, SpanKind.SERVER, start_time=end - int(seconds * 1e9))
        if span.is_recording():
            span.set_attributes(shared)
            span.set_attributes(dict(_of_call(call, status)))
            if observer is not None:
                span.set_attributes(dict(_of_completion(observer, seconds)))
            if status >= 500:
                span.set_status(Status(StatusCode.ERROR))
        span.end(end)

    def close(self, seconds: float) -> None:
        """See ``Tracing``."""
        closing = threading.Thread(target=self._close, name="quintet-otel", daemon=True)  # the library waits half a minute for a collector
        closing.start()
        closing.join(seconds)

    def _close(self) -> None:
        self._tracers.shutdown()
        self._meters.shutdown()

    def _histogram(self, name: str, about: str, bounds: tuple[float, ...]) -> Histogram:
        return self._meters.get_meter("quintet", __version__).create_histogram(
            name, "s", about, explicit_bucket_boundaries_advisory=list(bounds)
        )

    def _measure(self, shared: Mapping[str, Value], observer: Observer | None, seconds: float) -> None:
        self._duration.record(seconds, shared)
        if observer is None:
            return
        if observer.first_s is not None:
            self._first.record(observer.first_s, shared)
        if observer.per_token_s is not None:
            self._each.record(observer.per_token_s, shared)


def _resource() -> Resource:
    """What the standard variables say of this process, with a name of ours where they give it none."""
    resource = Resource.create({SERVICE_VERSION: __version__})
    named = not str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return resource if named else resource.merge(Resource({SERVICE_NAME: "quintet"}))


def _shared(call: Call, status: int, observer: Observer | None) -> Iterator[tuple[str, Value]]:
    """What spans and metrics have in common: few values, and none of a client's but a model's name that was found here."""
    yield "gen_ai.operation.name", OPERATION
    yield "gen_ai.provider.name", PROVIDER
    if observer is not None:
        yield "gen_ai.response.model", str(call.facts.get("model", ""))
    if "refused" in call.facts:
        yield "error.type", str(call.facts["refused"])
    elif status >= 400:
        yield "error.type", str(status)


def _of_call(call: Call, status: int) -> Iterator[tuple[str, Value]]:
    yield "http.request.method", "POST"
    yield "http.route", call.route.name if call.route else ""
    yield "http.response.status_code", status
    yield "quintet.dialect", call.provider.name
    yield "gen_ai.request.id", call.http.request_id


def _of_completion(observer: Observer, seconds: float) -> Iterator[tuple[str, Value]]:
    request, usage, timing = observer.request, observer.usage, observer.timing
    controls = request.sampling
    yield "gen_ai.request.model", request.model[:MOST_CHARACTERS]
    yield "gen_ai.request.stream", request.stream
    yield "gen_ai.request.choice.count", request.n
    yield "gen_ai.request.temperature", controls.temperature
    yield "gen_ai.request.top_p", controls.top_p
    yield "gen_ai.request.frequency_penalty", controls.frequency_penalty
    yield "gen_ai.request.presence_penalty", controls.presence_penalty
    if controls.top_k:
        yield "gen_ai.request.top_k", controls.top_k
    if controls.seeded and controls.seed < 1 << 63:  # an attribute is no larger
        yield "gen_ai.request.seed", controls.seed
    if request.max_tokens is not None and request.max_tokens < 1 << 63:
        yield "gen_ai.request.max_tokens", request.max_tokens
    yield "gen_ai.response.finish_reasons", tuple(observer.reasons)
    yield "gen_ai.usage.input_tokens", usage.prompt_tokens
    yield "gen_ai.usage.output_tokens", usage.completion_tokens
    yield "gen_ai.usage.cache_read.input_tokens", usage.cached_tokens
    yield "gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens
    yield "gen_ai.latency.e2e", seconds
    if observer.first_s is not None:
        yield "gen_ai.latency.time_to_first_token", observer.first_s
    if timing is not None:
        yield "gen_ai.latency.time_in_queue", timing.queue
        yield "gen_ai.latency.time_in_model_prefill", timing.prompt
        yield "gen_ai.latency.time_in_model_decode", timing.completion
        yield "gen_ai.latency.time_in_model_inference", timing.prompt + timing.completion
