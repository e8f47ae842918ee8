"""What ``quintet top`` makes of two pages of metrics."""

from __future__ import annotations

import pytest

from quintet.cli.scrape import Between, Scrape, look

PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="a"}} {running}
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="a"}} {tokens}
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{engine="0",model_name="a"}} {queries}
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{{engine="0",model_name="a"}} {hits}
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{engine="0",model_name="a",le="0.1"}} {fast}
vllm:time_to_first_token_seconds_bucket{{engine="0",model_name="a",le="0.2"}} {slow}
vllm:time_to_first_token_seconds_bucket{{engine="0",model_name="a",le="+Inf"}} {all}
# TYPE http_requests_total counter
http_requests_total{{handler="/completions",status="2xx"}} {good}
http_requests_total{{handler="/completions",status="5xx"}} 3
"""


def page(at: float, **values: float) -> Scrape:
    known = dict.fromkeys(("running", "tokens", "queries", "hits", "fast", "slow", "all", "good"), 0.0)
    return Scrape.of(PAGE.format(**known | values), at)


def test_a_server_with_vllms_names_alone_is_shown_as_far_as_they_go() -> None:
    before = page(10.0, tokens=100, queries=50, hits=10, good=7)
    now = page(12.0, running=3, tokens=300, queries=90, hits=40, good=17, fast=5, slow=15, all=20)
    found = look(Between(before, now))
    model = found.models["a"]
    assert (model["running"], model["generated_per_s"], model["cache_hits"]) == (3, 100, 0.75)
    assert (model["ttft_p50_s"], model["ttft_p95_s"]) == (0.15, 0.2)
    assert found.server["answers_per_s"] == {"2xx": 5}
    missing = ("ready", "loaded", "waiting", "restarts", "engine_cpus", "gap_p50_s", "kv_cache_used")
    assert [model[name] for name in missing] == [None] * len(missing)
    assert found.server["version"] is found.server["memory_bytes"] is None


def test_a_quantile_is_of_what_came_between_and_goes_straight_through_its_class() -> None:
    before, now = page(0.0, fast=100, slow=100, all=100), page(1.0, fast=104, slow=108, all=108)
    between = Between(before, now)
    name = "vllm:time_to_first_token_seconds"
    assert between.quantile(0.25, name) == pytest.approx(0.05)
    assert between.quantile(0.75, name) == pytest.approx(0.15)
    assert Between(now, now).quantile(0.5, name) is None
    assert between.quantile(0.5, "nothing") is None


def test_a_quantile_beyond_the_last_bound_is_that_bound() -> None:
    assert Between(page(0.0), page(1.0, all=5)).quantile(0.5, "vllm:time_to_first_token_seconds") == 0.2


def test_a_histogram_whose_server_was_started_again_is_all_of_the_second_page() -> None:
    before, now = page(0.0, fast=100, slow=100, all=100), page(1.0, fast=0, slow=108, all=108)
    assert Between(before, now).quantile(0.5, "vllm:time_to_first_token_seconds") == pytest.approx(0.15)
    before, now = page(0.0, fast=100, slow=100, all=100), page(1.0, fast=4, slow=8, all=8)
    assert Between(before, now).quantile(0.25, "vllm:time_to_first_token_seconds") == pytest.approx(0.05)


def test_a_counter_that_fell_began_anew() -> None:
    between = Between(page(0.0, tokens=1000, good=50), page(2.0, tokens=30, good=4))
    assert between.rate("vllm:generation_tokens_total") == 15
    assert between.rates("http_requests_total", "status") == {"2xx": 2}


def test_what_is_no_page_is_refused() -> None:
    with pytest.raises(ValueError, match=r".*"):
        Scrape.of("<html>{nothing", 0.0)
