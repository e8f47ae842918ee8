"""Prometheus' text format, by its rules, and the bound on what clients can make of it."""

from __future__ import annotations

import pytest

from quintet.metrics import MOST_SERIES, Counter, Gauge, Histogram, render


def test_each_kind_is_written_as_the_format_says() -> None:
    requests = Counter("http_requests", "Answers.", ("status",), {"engine": "0"})
    requests.add(labels=("200",))
    requests.add(2, ("404",))
    running = Gauge("vllm:num_requests_running", "Running.")
    running.set(3)
    latency = Histogram("latency_seconds", "Latency.", (0.5, 1, 2.5))
    for value in (0.25, 0.5, 0.75, 100):
        latency.observe(value)
    assert render([requests, running, latency]) == (
        "# HELP http_requests_total Answers.\n"
        "# TYPE http_requests_total counter\n"
        'http_requests_total{engine="0",status="200"} 1\n'
        'http_requests_total{engine="0",status="404"} 2\n'
        "# HELP vllm:num_requests_running Running.\n"
        "# TYPE vllm:num_requests_running gauge\n"
        "vllm:num_requests_running 3\n"
        "# HELP latency_seconds Latency.\n"
        "# TYPE latency_seconds histogram\n"
        'latency_seconds_bucket{le="0.5"} 2\n'
        'latency_seconds_bucket{le="1"} 3\n'
        'latency_seconds_bucket{le="2.5"} 3\n'
        'latency_seconds_bucket{le="+Inf"} 4\n'
        "latency_seconds_count 4\n"
        "latency_seconds_sum 101.5\n"
    )


def test_without_labels_a_counter_and_a_histogram_start_at_zero_so_that_rates_can_be_taken() -> None:
    assert Counter("c", "").lines() == ["c_total 0"]
    assert Histogram("h", "", (1,)).lines() == ['h_bucket{le="1"} 0', 'h_bucket{le="+Inf"} 0', "h_count 0", "h_sum 0"]


def test_label_values_are_escaped() -> None:
    gauge = Gauge("g", "", ("name",))
    gauge.set(1.5, ('a"b\\c\nd',))
    assert gauge.lines() == ['g{name="a\\"b\\\\c\\nd"} 1.5']


def test_the_number_of_series_is_bounded_and_nothing_goes_uncounted() -> None:
    counter = Counter("c", "", ("path",))
    for number in range(10_000):
        counter.add(labels=(str(number),))
    lines = counter.lines()
    assert len(lines) == MOST_SERIES + 1
    assert sum(int(line.split()[-1]) for line in lines) == 10_000


def test_a_counter_never_goes_down_and_labels_must_be_complete() -> None:
    with pytest.raises(ValueError, match="only goes up"):
        Counter("c", "").add(-1)
    with pytest.raises(ValueError, match="has the labels"):
        Counter("c", "", ("a", "b")).add(labels=("x",))
