"""Spans and metrics of a real server, at a collector that speaks OTLP; and a collector that is away, or never answers."""

from __future__ import annotations

import gzip
import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tests.e2e.test_serve_command import PATIENCE_S, served
from tests.support.waiting import until

SECRETS = ("canary-prompt", "canary-suffix", "canary-stop", "canary-user", "canary-key", "canary-model", "canary-query", "canary-path")
OFTEN = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_METRIC_EXPORT_INTERVAL": "100"}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(ThreadingHTTPServer):
    """Takes what is exported, or holds every request until ``go``."""

    daemon_threads = True

    def __init__(self, *, slow: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[tuple[str, bytes]] = []
        self.asked, self.go = threading.Event(), threading.Event()
        if not slow:
            self.go.set()
        self.url = f"http://127.0.0.1:{self.server_port}"

    @property
    def spans(self) -> list[Span]:
        """Those that came."""
        requests = [ExportTraceServiceRequest.FromString(body) for path, body in self.bodies if path == "/v1/traces"]
        return [span for one in requests for group in one.resource_spans for scope in group.scope_spans for span in scope.spans]

    def resource(self) -> dict[str, Any]:
        """What the first spans say of who sends them."""
        first = ExportTraceServiceRequest.FromString(next(body for path, body in self.bodies if path == "/v1/traces"))
        return attributes(first.resource_spans[0].resource)

    def counts(self) -> dict[str, int]:
        """Of each histogram as it came last: observations."""
        found: dict[str, int] = {}
        for path, body in self.bodies:
            for group in ExportMetricsServiceRequest.FromString(body).resource_metrics if path == "/v1/metrics" else ():
                for metric in (metric for scope in group.scope_metrics for metric in scope.metrics):
                    assert metric.unit == "s"
                    found[metric.name] = sum(point.count for point in metric.histogram.data_points)
        return found


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.headers["content-type"] == "application/x-protobuf"
        self.server.bodies.append((self.path, gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body))
        self.server.asked.set()
        self.server.go.wait(PATIENCE_S)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def collecting(*, slow: bool = False) -> Iterator[Collector]:
    with Collector(slow=slow) as one:
        threading.Thread(target=one.serve_forever, daemon=True).start()
        try:
            yield one
        finally:
            one.go.set()
            one.shutdown()


def attributes(one: Any) -> dict[str, Any]:
    """A span's, or a resource's, as plain values."""

    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        return [plain(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)

    return {item.key: plain(item.value) for item in one.attributes}


def test_a_completion_is_a_span_in_the_conventions_words_and_nothing_that_a_client_wrote() -> None:
    with collecting() as collector, served("--toy", "--otlp-endpoint", collector.url, "--api-key", "canary-key", **OFTEN) as one:
        secret = {"prompt": "canary-prompt", "stop": ["canary-stop"], "user": "canary-user", "max_tokens": 5, "ignore_eos": True}
        headers = {"Authorization": "Bearer canary-key", "traceparent": PARENT, "x-request-id": "one"}
        assert one.post({**secret, "n": 2, "temperature": 0.5, "seed": 7}, **headers)[0] == 200
        assert one.post({**secret, "stream": True}, **headers | {"x-request-id": "two", "traceparent": "no such thing"})[0] == 200
        large = {"prompt": "a", "seed": -1, "max_tokens": 10**20, "logit_bias": {"256": 100}}
        path, json_ = "/fireworks/v1/completions", {"content-type": "application/json"}  # which has what fits
        assert one.send(path, json.dumps(large).encode(), {**headers, **json_, "x-request-id": "four"})[0] == 200
        assert one.post({**secret, "model": "canary-model"}, **headers | {"x-request-id": "three"})[0] == 404
        assert one.send("/v1/models?q=canary-query", None, headers)[0] == 200
        assert one.send("/v1/canary-path", b"{}", headers)[0] == 404
        until(lambda: len(collector.spans) >= 4 and collector.counts().get("gen_ai.server.request.duration") == 4)
        spans = {attributes(span)["gen_ai.request.id"]: span for span in collector.spans}
        assert spans.keys() == {"one", "two", "three", "four"}
        first = attributes(spans["one"])
        assert first["gen_ai.latency.e2e"] >= first["gen_ai.latency.time_to_first_token"] > 0
        assert {name: value for name, value in first.items() if "latency" not in name} == {
            "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "quintet", "gen_ai.request.model": "toy",
            "gen_ai.response.model": "toy", "gen_ai.request.id": "one", "gen_ai.request.stream": False, "gen_ai.request.choice.count": 2,
            "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 1.0, "gen_ai.request.frequency_penalty": 0.0,
            "gen_ai.request.presence_penalty": 0.0, "gen_ai.request.seed": 7, "gen_ai.request.max_tokens": 5,
            "gen_ai.response.finish_reasons": ["length", "length"], "gen_ai.usage.input_tokens": 13, "gen_ai.usage.output_tokens": 10,
            "gen_ai.usage.cache_read.input_tokens": 0, "gen_ai.usage.reasoning.output_tokens": 0, "http.request.method": "POST",
            "http.route": "/completions", "http.response.status_code": 200, "quintet.dialect": "openai",
        }  # fmt: skip
        assert (spans["one"].name, spans["one"].kind) == ("llm_request", Span.SPAN_KIND_SERVER)
        assert f"00-{spans['one'].trace_id.hex()}-{spans['one'].parent_span_id.hex()}-01" == PARENT
        assert not spans["two"].parent_span_id and attributes(spans["two"])["gen_ai.request.stream"]
        assert "gen_ai.request.seed" not in attributes(spans["two"]), "it asked for none"
        assert not {"gen_ai.request.seed", "gen_ai.request.max_tokens"} & attributes(spans["four"]).keys()
        refused = attributes(spans["three"])
        assert (refused["error.type"], refused["http.response.status_code"]) == ("model_not_found", 404)
        assert spans["three"].status.code == Status.STATUS_CODE_UNSET, "the client's fault is no failure of the server"
        took = spans["one"].end_time_unix_nano - spans["one"].start_time_unix_nano
        assert took / 1e9 == pytest.approx(first["gen_ai.latency.e2e"], abs=1e-3)
        assert abs(spans["one"].end_time_unix_nano / 1e9 - time.time()) < PATIENCE_S
        counts = {"request.duration": 4, "time_to_first_token": 2, "time_per_output_token": 2}
        assert collector.counts() == {f"gen_ai.server.{name}": count for name, count in counts.items()}
        assert collector.resource()["service.name"] == "quintet"
        sent = b"".join(body for _, body in collector.bodies).decode("latin-1")
        assert [secret for secret in SECRETS if secret in sent] == []
        assert "to encode" not in one.end(signal.SIGTERM)[1], "no integer of OTLP is as large as those of the fourth"


def test_the_standard_variables_say_where_who_and_which_spans_are_sent() -> None:
    with collecting() as collector:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_SERVICE_NAME": "mine",
            "OTEL_TRACES_SAMPLER": "parentbased_always_off",
        }
        with served("--toy", **OFTEN, **variables, OTEL_METRICS_EXPORTER="none") as one:
            one.post({"prompt": "x", "max_tokens": 1}, **{"x-request-id": "unsampled"})
            one.post({"prompt": "x", "max_tokens": 1}, **{"x-request-id": "sampled", "traceparent": PARENT})
            until(lambda: collector.spans)
            assert [attributes(span)["gen_ai.request.id"] for span in collector.spans] == ["sampled"]
            assert collector.resource()["service.name"] == "mine"
            assert collector.counts() == {}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_what_was_not_sent_yet_is_when_the_server_ends(how: int) -> None:
    with collecting() as collector, served("--toy", "--otlp-endpoint", collector.url) as one:  # by default, spans go every 5 seconds
        for _ in range(3):
            one.post({"prompt": "x", "max_tokens": 1})
        code, err = one.end(how)
        assert (code, len(collector.spans), collector.counts()["gen_ai.server.request.duration"]) == (0, 3, 3), err


def test_a_collector_that_never_answers_holds_up_neither_requests_nor_the_end() -> None:
    queue = {"OTEL_BSP_MAX_QUEUE_SIZE": "4", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2"}
    with collecting(slow=True) as collector, served("--toy", "--otlp-endpoint", collector.url, **OFTEN, **queue) as one:
        one.post({"prompt": "x", "max_tokens": 1})
        assert collector.asked.wait(PATIENCE_S)
        answers = [one.post({"prompt": "x", "max_tokens": 2, "temperature": 0}) for _ in range(30)]
        assert {status for status, _ in answers} == {200}
        assert len({json.loads(body)["choices"][0]["text"] for _, body in answers}) == 1
        assert len(collector.bodies) <= 4, "they are held, and the library sends one at a time of each kind"
        code, err = one.end(signal.SIGTERM)
        assert code == 0 and not collector.go.is_set()
        assert "Traceback" not in err


def test_a_collector_that_is_away_costs_nothing_but_a_line_of_the_log() -> None:
    with served("--toy", "--otlp-endpoint", "http://127.0.0.1:9", **OFTEN) as one:
        for _ in range(5):
            assert one.post({"prompt": "x", "max_tokens": 1})[0] == 200
        code, err = one.end(signal.SIGTERM)
        assert code == 0
        assert not re.search("Traceback", err)
