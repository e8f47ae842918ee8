"""The page for Prometheus: the same names, labels and values for ever, one set per model, and a bound on what clients can make of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.asgi import call
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.backends.base import Counts, Health, Incidents, Pages, State
from quintet.config import ServerConfig
from quintet.server.completions import Source
from quintet.server.metrics import MOST_SERIES, OTHER, Telemetry

RECORDED = Path(__file__).with_name("metrics.prom")
HEALTH = Health(
    State.READY,
    1.0,
    3,
    2,
    Counts(7, 90, 50, 1, 40, 30, 2, 12, 8),
    Pages(20, 16, 5, 8),
    (0, 4, 0, 3, *(0,) * 10),
    Incidents(1, 2, 0, 0, 6, 3, 4, 5),
    memory=0.25,
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
    assert parsed(call(app, method="GET", path="/metrics").body) == parsed(RECORDED.read_bytes())


def test_each_model_has_its_own_labels_and_every_series_starts_at_zero() -> None:
    telemetry = Telemetry(["one", "two"], lambda: 0.0)
    telemetry.of("two").prompt_tokens.inc(5)
    telemetry.of("two").done("stop")
    _, series = parsed(telemetry.scrape({"one": HEALTH, "two": Health(State.LOADING)}))
    one, two = by_model(series, "one"), by_model(series, "two")
    assert one.keys() == two.keys()
    assert (one["vllm:prompt_tokens_total"], two["vllm:prompt_tokens_total"]) == (0, 5)
    assert (one["vllm:num_requests_running"], two["vllm:num_requests_running"]) == (3, 0)
    assert (one["vllm:iteration_tokens_total_count"], two["vllm:iteration_tokens_total_count"]) == (7, 0)
    assert series["vllm:request_success_total", frozenset({("model_name", "two"), ("engine", "0"), ("finished_reason", "stop")})] == 1


def test_nothing_is_told_of_the_process_and_nothing_is_shared_between_servers() -> None:
    first, second = Telemetry(["m"], lambda: 0.0), Telemetry(["m"], lambda: 0.0)
    first.of("m").prompt_tokens.inc(5)
    about, series = parsed(second.scrape({}))
    assert by_model(series, "m")["vllm:prompt_tokens_total"] == 0
    assert {name.partition(":")[0] for name in about} == {"vllm", "quintet", "http_requests", "http_request_duration_seconds"}
    assert not [name for name, _ in series if name.endswith("_created")]


@pytest.mark.fault("G10")
def test_the_number_of_series_is_bounded_and_nothing_goes_uncounted() -> None:
    telemetry = Telemetry([], lambda: 0.0)
    for number in range(10_000):
        telemetry.answered(f"M{number}", OTHER, 200, 0.0)
    _, series = parsed(telemetry.scrape({}))
    answers = [value for (name, _), value in series.items() if name == "http_requests_total"]
    assert len(answers) == MOST_SERIES + 1
    assert sum(answers) == 10_000
