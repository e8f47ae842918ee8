"""A real Prometheus scrapes a real server under load, and answers every query of our dashboard and of vLLM's own.

``make test-observability``; here only where Prometheus is installed and asked for. vLLM's dashboards are those of its release's archive.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.test_serve_command import PATIENCE_S, Served, served
from tests.peers.__main__ import PEERS, fetched
from tests.support import dashboard

pytestmark = pytest.mark.skipif(not os.environ.get("QUINTET_TEST_OBSERVABILITY"), reason="make test-observability")

SCRAPES_S = 1
INTERVAL = "20s"
DOCUMENTED = Path(__file__).parents[2] / "docs/observability.md"


class Prometheus:
    """One that scrapes a server each second."""

    def __init__(self, target: str, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        config = {
            "global": {"scrape_interval": f"{SCRAPES_S}s"},
            "scrape_configs": [{"job_name": "quintet", "static_configs": [{"targets": [target]}]}],
        }
        file = folder / "prometheus.json"
        file.write_text(json.dumps(config))
        options = f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={self.address}"
        self.process = subprocess.Popen(["prometheus", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(self, path: str, **arguments: str) -> Any:
        """What the API answers."""
        with urllib.request.urlopen(
            f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(arguments)}", timeout=PATIENCE_S
        ) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success"
        return answer["data"]

    def scrapes(self) -> int:
        """Good ones so far."""
        with contextlib.suppress(OSError):
            found = self.ask("query", query="count_over_time((up == 1)[1h:1s])")["result"]
            return int(found[0]["value"][1]) if found else 0
        return 0


@contextlib.contextmanager
def prometheus(one: Served, folder: Path) -> Iterator[Prometheus]:
    it = Prometheus(one.url.removeprefix("http://"), folder)
    try:
        yield it
    finally:
        it.process.kill()
        it.process.wait()


def leave(one: Served) -> None:
    """Send a long stream's request, and hang up at its first bytes."""
    body = json.dumps({"prompt": "x", "max_tokens": 2000, "stream": True, "ignore_eos": True}).encode()
    host, _, port = one.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        client.recv(4096)


def load(one: Served, stop: threading.Event) -> None:
    """Requests of all kinds, until it is enough."""
    number = 0
    while not stop.is_set():
        number += 1
        shared = {"prompt": f"{'The same beginning again and again. ' * 4}{number}", "max_tokens": 24, "temperature": 0}
        one.post(shared)
        one.post({**shared, "stream": True, "n": 2, "temperature": 1})
        schema = {"type": "object", "properties": {f"p{number}": {"type": "boolean"}}, "required": [f"p{number}"]}
        one.post({**shared, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
        one.post({"prompt": "x", "n": 0})
        leave(one)


@dataclass(frozen=True, slots=True)
class Watched:
    """A server under load, and who watches it."""

    server: Served
    scraper: Prometheus

    def without_answer(self, asked: dict[str, list[str]]) -> list[tuple[str, str]]:
        """Of the queries of each panel those that find nothing, with their panel."""
        return [
            (panel, query)
            for panel, queries in asked.items()
            for query in queries
            if not any(value["value"][1] != "NaN" for value in self.scraper.ask("query", query=query)["result"])
        ]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    stop, folder = threading.Event(), tmp_path_factory.mktemp("watched")
    with served("--toy", "--ledger", str(folder / "ledger.db")) as one, prometheus(one, folder) as scraper:
        clients = [threading.Thread(target=load, args=(one, stop)) for _ in range(3)]
        for client in clients:
            client.start()
        try:
            end = time.monotonic() + PATIENCE_S
            while scraper.scrapes() < 12:
                assert time.monotonic() < end, "Prometheus does not get its scrapes"
                time.sleep(0.2)
            yield Watched(one, scraper)
        finally:
            stop.set()
            for client in clients:
                client.join()


def test_every_query_of_the_dashboard_gives_something(watched: Watched) -> None:
    assert watched.without_answer(dashboard.queries(INTERVAL)) == []
    ask = watched.scraper.ask
    counted = {name: float(ask("query", query=f"sum({name})")["result"][0]["value"][1]) for name in MOVED}
    assert {name for name, value in counted.items() if not value} == set()
    assert {series["model_name"] for series in ask("series", **{"match[]": "quintet:engine_ready"})} == {"toy"}


def test_every_query_of_vllms_own_dashboards_gives_something(watched: Watched) -> None:
    (vllm,) = (peer for peer in PEERS if peer.name == "vllm")
    files = sorted((fetched(vllm) / "examples/observability").rglob("*.json"))
    assert {file.stem for file in files} == {"grafana", "performance_statistics", "query_statistics"}
    for file in files:
        asked = dashboard.queries(INTERVAL, file, "toy")
        assert sum(map(len, asked.values())) >= 14
        assert (file.stem, watched.without_answer(asked)) == (file.stem, [])


def test_what_is_scraped_is_what_is_documented(watched: Watched) -> None:
    told = watched.server.send("/metrics", None, {})[1].decode()
    documented = set(re.findall(r"^\| `([\w:]+)` \|", DOCUMENTED.read_text(), re.MULTILINE))
    there = {f"{family.name}_total" if family.type == "counter" else family.name for family in text_string_to_metric_families(told)}
    assert there <= documented
    assert documented - there <= {"quintet:moderation_judgements_total", "quintet:moderation_seconds"}


MOVED = (
    'http_requests_total{status="2xx"}',
    'http_requests_total{status="4xx"}',
    'quintet:requests_refused_total{reason="invalid_request"}',
    'quintet:client_disconnects_total{when="in_answer"}',
    'vllm:prompt_tokens_by_source_total{source="local_compute"}',
    'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}',
    "vllm:request_time_per_output_token_seconds_sum",
    "vllm:inter_token_latency_seconds_sum",
    "quintet:guide_check_seconds_total",
    "quintet:guides_compiled_total",
    "quintet:guide_compile_seconds_total",
    "quintet:guide_mask_seconds_total",
    "quintet:engine_process_cpu_seconds_total",
    "quintet:ledger_rows_written_total",
)
"""Series that the load must have moved."""
