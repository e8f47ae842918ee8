"""The page for Prometheus: the same names, labels and values for ever, one set per model, and a bound on what clients can make of it."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.asgi import call
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.backends.base import Counts, Health, Incidents, Pages, State
from quintet.config import ServerConfig
from quintet.server.collectors import ENGINE, LABELS, DurationsByModel
from quintet.server.metrics import MOST_SERIES, OTHER, Telemetry
from quintet.server.source import Source
from scripts import metrics

RECORDED = Path(__file__).with_name("metrics.prom")
HEALTH = Health(
    State.READY,
    1.0,
    3,
    2,
    Counts(7, 90, 50, 1, 40, 30, 2, 12, 8, 3, 0.5, 0.25, 5, 4),
    Pages(20, 16, 5, 8),
    (0, 4, 0, 3, *(0,) * 10),
    Incidents(1, 2, 0, 0, 6, 3, 4, 5),
    memory=0.25,
    deferred=1,
)

Series = dict[tuple[str, frozenset[tuple[str, str | float]]], float]


def parsed(page: bytes) -> tuple[dict[str, tuple[str, str]], Series]:
    """Kind and help of each metric, and each value by name and labels; bounds are numbers, as Prometheus takes them."""
    about, series = {}, {}
    for family in text_string_to_metric_families(page.decode()):
        about[family.name] = (family.type, family.documentation)
        for sample in family.samples:
            labels = {name: float(value) if name == "le" else value for name, value in sample.labels.items()}
            assert (sample.name, frozenset(labels.items())) not in series
            series[sample.name, frozenset(labels.items())] = sample.value
    return about, series


def by_model(series: Series, model: str) -> dict[str, float]:
    return {name: value for (name, labels), value in series.items() if labels == {("model_name", model), ("engine", "0")}}


def test_the_page_tells_the_same_as_the_recorded_one() -> None:
    names = ('mo"d\\el', "alias")
    app = create_app(ScriptedBackend(told=HEALTH), ServerConfig(), names, source=Source(clock=lambda: 5.0))
    for stream in (False, True):
        call(app, {"prompt": "abcd", "max_tokens": 3, "n": 2, "stream": stream})
    call(app, {"prompt": "a", "model": "alias", "max_tokens": 10**400})
    call(app, {"prompt": "a", "model": "alias"})
    call(app, {"prompt": "a", "model": "unknown"})
    call(app, method="GET", path="/nope")
    call(app, method="GET")
    page = call(app, method="GET", path="/metrics").body
    changing = (b"process_", b"quintet:build_info")
    steady = [line for line in page.splitlines(True) if not line.removeprefix(b"# HELP ").removeprefix(b"# TYPE ").startswith(changing)]
    assert parsed(b"".join(steady)) == parsed(RECORDED.read_bytes())


def test_each_model_has_its_own_labels_and_every_series_starts_at_zero() -> None:
    telemetry = Telemetry(["one", "two"], lambda: 0.0)
    telemetry.of("two").prompted(5, 2)
    telemetry.of("two").done("stop")
    _, series = parsed(telemetry.scrape({"one": HEALTH, "two": Health(State.LOADING)}))
    one, two = by_model(series, "one"), by_model(series, "two")
    assert one.keys() == two.keys()
    assert (one["quintet:replicas"], two["quintet:replicas"]) == (1, 0), "one that loads takes no work"
    assert (one["vllm:prompt_tokens_total"], two["vllm:prompt_tokens_total"]) == (0, 5)
    assert (one["vllm:num_requests_running"], two["vllm:num_requests_running"]) == (3, 0)
    assert (one["vllm:iteration_tokens_total_count"], two["vllm:iteration_tokens_total_count"]) == (7, 0)
    assert series["vllm:request_success_total", frozenset({("model_name", "two"), ("engine", "0"), ("finished_reason", "stop")})] == 1


def test_answers_to_completions_are_there_before_the_first_one() -> None:
    _, series = parsed(Telemetry([], lambda: 0.0).scrape({}))
    assert series["http_request_duration_seconds_count", frozenset({("handler", "/completions")})] == 0
    for status in ("2xx", "4xx", "5xx"):
        assert series["http_requests_total", frozenset({("handler", "/completions"), ("method", "POST"), ("status", status)})] == 0


def test_prompt_tokens_are_told_by_their_source() -> None:
    telemetry = Telemetry(["m"], lambda: 0.0)
    telemetry.of("m").prompted(5, 2)
    _, series = parsed(telemetry.scrape({}))
    sources = {dict(labels)["source"]: value for (name, labels), value in series.items() if name == "vllm:prompt_tokens_by_source_total"}
    assert sources == {"local_compute": 3, "local_cache_hit": 2, "external_kv_transfer": 0}
    one = by_model(series, "m")
    assert (one["vllm:prompt_tokens_total"], one["vllm:prompt_tokens_cached_total"]) == (5, 2)
    assert one["vllm:request_prefill_kv_computed_tokens_sum"] == 3


def test_a_model_that_is_not_loaded_sleeps_and_those_that_wait_are_told_apart() -> None:
    _, series = parsed(Telemetry([], lambda: 0.0).scrape({"up": HEALTH, "away": Health(State.CLOSED)}))

    def told(name: str, label: str, model: str) -> dict[str | float, float]:
        found = {key: value for key, value in series.items() if key[0] == name and ("model_name", model) in key[1]}
        return {dict(labels)[label]: value for (_, labels), value in found.items()}

    assert told("vllm:engine_sleep_state", "sleep_state", "up") == {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    assert told("vllm:engine_sleep_state", "sleep_state", "away") == {"awake": 0, "weights_offloaded": 0, "discard_all": 1}
    assert told("vllm:num_requests_waiting_by_reason", "reason", "up") == {"capacity": 1, "deferred": 1}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_engines_process_is_told_apart_from_the_servers() -> None:
    program = "print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdout
        engine.stdout.readline()  # until its program is loaded it has no memory of its own to tell
        _, series = parsed(Telemetry([], lambda: 0.0).scrape({"m": replace(HEALTH, pid=engine.pid), "thread": HEALTH}))
        engine.communicate(b"\n")
    server = series["process_start_time_seconds", frozenset()]
    found = by_model(series, "m")
    assert found["quintet:engine_process_start_time_seconds"] > server
    assert 0 < found["quintet:engine_process_resident_memory_bytes"] < series["process_resident_memory_bytes", frozenset()]
    assert not [name for name in by_model(series, "thread") if "process" in name]


def test_an_engine_whose_process_is_gone_is_told_without_it() -> None:
    _, series = parsed(Telemetry([], lambda: 0.0).scrape({"m": replace(HEALTH, pid=2**22 + 1)}))
    assert by_model(series, "m")["vllm:num_requests_running"] == 3


@given(st.lists(st.sampled_from([0.0, 0.01, 0.0100001, 0.5, 79.0, 80.0]) | st.floats(0, 1e4)))
def test_durations_are_told_as_the_librarys_histogram_tells_them(seconds: list[float]) -> None:
    bounds = (0.01, 0.5, 80)
    theirs = Histogram("gap_seconds", "Gaps.", LABELS, buckets=bounds, registry=(library := CollectorRegistry()))
    ours = DurationsByModel("gap_seconds", "Gaps.", bounds)
    (own := CollectorRegistry()).register(ours)
    for model in ("a", 'b"'):
        expected, durations = theirs.labels(model, ENGINE), ours.of(model)
        for each in seconds:
            expected.observe(each)
            durations.observe(each)
    assert generate_latest(own) == generate_latest(library)


def test_nothing_is_shared_between_servers() -> None:
    first, second = Telemetry(["m"], lambda: 0.0), Telemetry(["m"], lambda: 0.0)
    first.of("m").prompted(5, 0)
    about, series = parsed(second.scrape({}))
    assert by_model(series, "m")["vllm:prompt_tokens_total"] == 0
    assert {name.partition(":")[0].partition("_")[0] for name in about} == {"vllm", "quintet", "http", "process"}
    assert not [name for name, _ in series if name.endswith("_created")]


def test_the_documented_table_is_what_the_page_says_of_itself() -> None:
    text = metrics.PAGE.read_text(encoding="utf-8")
    assert metrics.written(text) == text, "run: make metrics"


@pytest.mark.fault("G10")
def test_every_metric_that_a_page_names_is_one_that_there_is() -> None:
    there = set(re.findall(r"^\| `([^`]+)` \|", metrics.table(metrics.scraped()), re.MULTILINE))
    named = [
        (page.name, name)
        for page in [*metrics.PAGE.parent.glob("*.md"), *metrics.PAGE.parent.glob("guides/*.md")]
        for name in re.findall(r"\b(?:quintet|vllm):\w+\*?", page.read_text(encoding="utf-8"))
    ]
    assert len(named) > len(there)
    unknown = [
        (page, name)
        for page, name in named
        if name not in there and not (name.endswith("*") and any(one.startswith(name[:-1]) for one in there))
    ]
    assert unknown == []


def test_the_number_of_series_is_bounded_and_nothing_goes_uncounted() -> None:
    telemetry = Telemetry([], lambda: 0.0)
    for number in range(10_000):
        telemetry.answered(f"M{number}", OTHER, 200, 0.0)
    _, series = parsed(telemetry.scrape({}))
    answers = [value for (name, _), value in series.items() if name == "http_requests_total"]
    assert len(answers) == MOST_SERIES + 1
    assert sum(answers) == 10_000
