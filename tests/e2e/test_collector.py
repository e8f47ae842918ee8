"""A real collector takes what a real server exports, reads it and hands it on: Rotel, a collector written apart from OpenTelemetry's SDKs.

``make test-observability`` installs it (``tests/e2e/test_otel.py`` has what is promised of each attribute, at a receiver of ours).
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.test_otel import OFTEN, PARENT, SECRETS, Collector, attributes, collecting
from tests.e2e.test_serve_command import PATIENCE_S, served
from tests.support.waiting import until

pytestmark = pytest.mark.skipif("QUINTET_TEST_OBSERVABILITY" not in os.environ, reason="make test-observability")

HOME = Path(__file__).parents[2] / "build/observability"


@contextlib.contextmanager
def rotel(behind: Collector) -> Iterator[str]:
    """A collector that hands on to another; the URL at which it takes what servers export."""
    (program,) = HOME.glob("lib/python*/site-packages/rotel/rotel-agent")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        http, grpc = (f"127.0.0.1:{free.getsockname()[1]}" for free in (one, other))
    command = [str(program), "start", "--otlp-http-endpoint", http, "--otlp-grpc-endpoint", grpc, "--batch-timeout", "100ms"]
    command += ["--exporter", "otlp", "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", behind.url]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield f"http://{http}"
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def test_a_collector_reads_spans_and_metrics_and_hands_them_on() -> None:
    with collecting() as behind, rotel(behind) as url, served("--toy", "--otlp-endpoint", url, **OFTEN) as one:
        asked = {"prompt": "canary-prompt", "user": "canary-user", "max_tokens": 4, "ignore_eos": True, "n": 2, "temperature": 0.5}
        assert one.post(asked, **{"x-request-id": "one", "traceparent": PARENT})[0] == 200
        assert one.post({**asked, "stream": True}, **{"x-request-id": "two"})[0] == 200
        assert one.post({**asked, "n": 0}, **{"x-request-id": "three"})[0] == 400
        until(lambda: len(behind.spans) >= 3 and behind.counts().get("gen_ai.server.request.duration") == 3)
        spans = {attributes(span)["gen_ai.request.id"]: span for span in behind.spans}
        assert spans.keys() == {"one", "two", "three"}
        assert f"00-{spans['one'].trace_id.hex()}-{spans['one'].parent_span_id.hex()}-01" == PARENT
        first = attributes(spans["one"])
        assert (first["gen_ai.usage.output_tokens"], first["gen_ai.response.finish_reasons"]) == (8, ["length", "length"])
        assert first["gen_ai.request.temperature"] == 0.5
        counts = {"request.duration": 3, "time_to_first_token": 2, "time_per_output_token": 2}
        assert behind.counts() == {f"gen_ai.server.{name}": count for name, count in counts.items()}
        assert behind.resource()["service.name"] == "quintet"
        assert [secret for secret in SECRETS if secret.encode() in b"".join(body for _, body in behind.bodies)] == []
