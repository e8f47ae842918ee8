"""What is counted and logged: what happened, and nothing that a client wrote."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from tests.server.asgi import JSON, call
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend
from tests.support.scripted_backend import request

from quintet import __version__, errors
from quintet.backends.base import Counts, Health, Pages, State
from quintet.config import ServerConfig
from quintet.engines.entry import Model
from quintet.engines.names import name_models
from quintet.engines.registry import Registry
from quintet.events import ChoiceDelta, ChoiceDone, Failed, Finish, Usage
from quintet.logs import JsonForm, TextForm
from quintet.request import Beams
from quintet.server.app import App
from quintet.server.app import create_app as create_several
from quintet.server.metrics import Telemetry
from quintet.server.refusals import REASONS, reason
from quintet.server.routing import HEADER
from quintet.server.source import Source
from quintet.server.telemetry import Observer

ENGINE = {
    "vllm:num_requests_running": 3,
    "vllm:num_requests_waiting": 2,
    "vllm:kv_cache_usage_perc": 0.25,
    "vllm:num_preemptions_total": 1,
    "vllm:prefix_cache_queries_total": 40,
    "vllm:prefix_cache_hits_total": 30,
    "vllm:spec_decode_num_drafts_total": 2,
    "vllm:spec_decode_num_draft_tokens_total": 12,
    "vllm:spec_decode_num_accepted_tokens_total": 8,
    "vllm:iteration_tokens_total_sum": 90,
    "vllm:iteration_tokens_total_count": 7,
    "quintet:kv_cache_cached_pages": 8,
    "quintet:engine_steps_total": 7,
    "quintet:prefill_tokens_total": 50,
}

SECRETS = ("canary-prompt", "canary-stop", "canary-user", "canary-key", "canary-query", "canary-model", "canary-path", "canary-field")


def app(backend: ScriptedBackend | None = None, **config: Any) -> App:
    made = create_app(backend or ScriptedBackend(), ServerConfig(**config), ("m",))
    assert isinstance(made, App)
    return made


def scraped(served: App, **headers: str) -> dict[str, float]:
    answer = call(served, method="GET", path="/metrics", headers=list(headers.items()))
    assert (answer.status, answer.header("content-type")) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return {_key(sample): sample.value for family in text_string_to_metric_families(answer.body.decode()) for sample in family.samples}


def _key(sample: Sample) -> str:
    """As it is written, without the labels that all have."""
    told = {name: value for name, value in sample.labels.items() if (name, value) not in (("model_name", "m"), ("engine", "0"))}
    told |= {"le": f"{float(told['le']):g}"} if "le" in told else {}
    labels = ",".join(f'{name}="{value}"' for name, value in told.items())
    return f"{sample.name}{{{labels}}}"


def test_a_completion_is_counted_under_vllms_names() -> None:
    served = app()
    for stream in (False, True):
        call(served, {"prompt": "abcd", "max_tokens": 3, "n": 2, "stream": stream})
    found = scraped(served)
    assert found["vllm:prompt_tokens_total{}"] == 8
    assert found["vllm:generation_tokens_total{}"] == 12
    assert found['vllm:request_success_total{finished_reason="length"}'] == 4
    assert found["vllm:time_to_first_token_seconds_count{}"] == 2
    assert found["vllm:inter_token_latency_seconds_count{}"] == 4
    assert found["vllm:e2e_request_latency_seconds_count{}"] == 2
    assert found['vllm:request_params_n_bucket{le="2"}'] == 2
    assert found["vllm:request_params_max_tokens_sum{}"] == 6
    assert found["vllm:request_prompt_tokens_sum{}"] == 8
    assert found["vllm:request_max_num_generation_tokens_sum{}"] == 6
    assert found["vllm:request_time_per_output_token_seconds_count{}"] == 2
    assert found['vllm:prompt_tokens_by_source_total{source="local_compute"}'] == 8
    assert found["vllm:prompt_tokens_cached_total{}"] == 0
    assert found['http_requests_total{handler="/completions",method="POST",status="2xx"}'] == 2


@pytest.mark.parametrize(("dialect", "told"), [("openai", (1, 16)), ("cerebras", (0, 0))])
def test_max_tokens_is_told_as_the_dialect_fills_it_in_as_vllm_does_and_not_where_that_has_no_default(
    dialect: str, told: tuple[int, int]
) -> None:
    served = app(dialect=dialect)
    assert call(served, {"model": "m", "prompt": "abcd"}).status == 200
    found = scraped(served)
    assert (found["vllm:request_params_max_tokens_count{}"], found["vllm:request_params_max_tokens_sum{}"]) == told


def test_what_the_engine_counts_is_told_as_it_is() -> None:
    health = Health(State.READY, 1.0, 3, 2, Counts(7, 90, 50, 1, 40, 30, 2, 12, 8), Pages(20, 16, 5, 8), (0, 4, 0, 3, *(0,) * 10))
    found = scraped(app(ScriptedBackend(told=health)))
    assert {name: found[f"{name}{{}}"] for name in ENGINE} == ENGINE
    assert found['vllm:cache_config_info{block_size="16",num_gpu_blocks="20"}'] == 1
    assert [found[f'vllm:iteration_tokens_total_bucket{{le="{bound}"}}'] for bound in ("1", "8", "32", "inf")] == [0, 4, 7, 7]


@pytest.mark.fault("E06", "H08")
def test_a_client_that_leaves_is_counted_as_aborted_with_the_tokens_that_were_computed() -> None:
    backend = ScriptedBackend(length=None, context=10_000_000, pause=0.001)
    served = app(backend)
    call(served, {"prompt": "abcd", "max_tokens": 1_000_000, "stream": True}, leave_at=3)
    found = scraped(served)
    assert found['vllm:request_success_total{finished_reason="abort"}'] == 1
    assert 0 < found["vllm:generation_tokens_total{}"] <= backend.steps


@pytest.mark.parametrize(("last", "reason"), [([], "abort"), ([Failed("The engine failed.")], "error")])
def test_each_choice_of_a_request_that_ends_early_is_counted_by_why_it_ended(last: list[Failed], reason: str) -> None:
    """With no last word where the client has left."""
    served = Telemetry(("m",), lambda: 0.0).of("m")
    observer = Observer(served, request("a", "b", n=2), 0.0)
    observer.saw([ChoiceDone(1, Finish.STOP), *last])
    observer.ended(Usage(1, 1), 1)
    assert observer.reasons == ["stop", *[reason] * 3]


def test_a_request_of_one_token_has_no_time_per_output_token() -> None:
    served = app()
    call(served, {"prompt": "abcd", "max_tokens": 1})
    found = scraped(served)
    assert found["vllm:request_max_num_generation_tokens_sum{}"] == 1
    assert found["vllm:request_time_per_output_token_seconds_count{}"] == 0


def test_refusals_are_counted_by_their_reason_whatever_route_refuses() -> None:
    served = app(api_keys=("sk-one",), admin_key="sk-admin")
    key = ("authorization", "Bearer sk-one")
    call(served, {"prompt": "a"})
    call(served, {"prompt": "a", "n": 0}, headers=[*JSON, key])
    call(served, {"prompt": "a" * 100, "max_tokens": 1}, headers=[*JSON, key])
    call(served, {"prompt": "a", "model": "unknown"}, headers=[*JSON, key, ("idempotency-key", "1")])
    call(served, {"prompt": "a", "n_predict": "x"}, path="/completion", headers=[*JSON, key])
    call(served, method="GET", path="/metrics", headers=[key])
    call(served, {"prompt": "a"}, headers=[*JSON, key])
    found = scraped(served, authorization="Bearer sk-admin")
    refused = {name: value for name, value in found.items() if name.startswith("quintet:requests_refused_total") and value}
    expected = {"unauthorized": 1, "invalid_request": 2, "prompt_too_long": 1, "model_not_found": 1, "forbidden": 1}
    assert refused == {f'quintet:requests_refused_total{{reason="{reason}"}}': count for reason, count in expected.items()}
    assert found['http_requests_total{handler="/completions",method="POST",status="4xx"}'] == 4


def test_tokens_that_an_engine_tells_together_count_as_if_each_had_come_by_itself() -> None:
    now = 10.0
    metrics = Telemetry(("m",), lambda: now).of("m")
    observer = Observer(metrics, request(n=2), now)
    for seconds, choices in ((1.0, (0, 1)), (0.5, (0, 1)), (1.5, (0, 0, 1, 0, 1, 1))):
        now += seconds
        observer.saw([ChoiceDelta(choice, "x") for choice in choices])
    assert observer.first_s == 1.0
    assert (metrics.gap.sum, max(metrics.gap.counts)) == (2.0, 4), "four of half a second"


def test_between_the_tokens_of_a_beam_search_which_come_at_its_end_no_time_is_measured() -> None:
    now = 10.0
    metrics = Telemetry(("m",), lambda: now).of("m")
    observer = Observer(metrics, replace(request(n=2), beams=Beams()), now)
    for _ in range(3):
        now += 1.0
        observer.saw([ChoiceDelta(0, "x"), ChoiceDelta(0, "y")])
    assert observer.first_s == 1.0
    assert max(metrics.gap.counts) == 0


def test_every_kind_of_error_has_a_word_and_one_to_come_has_its_parents() -> None:
    class New(errors.OverLimit):
        """One that nobody has thought of."""

        def __init__(self) -> None:
            pass

    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RequestError | errors.ServerError)
    ]
    assert {kind for kind in kinds if not kind.__subclasses__() and kind is not New} <= REASONS.keys()
    assert (reason(New()), reason(ValueError())) == ("over_limit", "internal_error")
    assert len(set(REASONS.values())) == len(REASONS)


@pytest.mark.parametrize(("stream", "when"), [(True, "in_answer"), (False, "before_answer")])
def test_a_client_that_leaves_is_counted_by_when_it_left(stream: bool, when: str) -> None:
    served = app(ScriptedBackend(length=None, context=10_000_000, pause=0.001))
    leaving = {"leave_at": 3} if stream else {"leave_after": 0.1}
    call(served, {"prompt": "abcd", "max_tokens": 1_000_000, "stream": stream}, **leaving)
    call(served, {"prompt": "abcd", "max_tokens": 2, "stream": stream})
    found = scraped(served)
    left = {name: value for name, value in found.items() if name.startswith("quintet:client_disconnects_total") and value}
    assert left == {f'quintet:client_disconnects_total{{when="{when}"}}': 1}


def test_a_stream_that_is_left_before_its_first_token_had_no_answer() -> None:
    served = app(ScriptedBackend(pause=0.3))
    call(served, {"prompt": "abcd", "max_tokens": 3, "stream": True}, leave_after=0.05)
    found = scraped(served)
    assert found['quintet:client_disconnects_total{when="before_answer"}'] == 1
    assert found['http_requests_total{handler="/completions",method="POST",status="4xx"}'] == 1
    assert found['vllm:request_success_total{finished_reason="abort"}'] == 1


def test_a_client_that_leaves_a_recorded_answer_is_counted_too() -> None:
    served = app(ScriptedBackend(length=None, context=10_000_000, pause=0.001))
    headers = [*JSON, ("idempotency-key", "1")]
    call(served, {"prompt": "abcd", "max_tokens": 1_000_000, "stream": True}, headers=headers, leave_at=3)
    assert scraped(served)['quintet:client_disconnects_total{when="in_answer"}'] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_who_closes_right_after_a_recorded_answer_has_not_left_and_its_line_tells_all_of_it(
    caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    served = app()
    with caplog.at_level(logging.INFO, "quintet.access"):
        for headers in (JSON, [*JSON, ("idempotency-key", "1")]):
            call(served, {"prompt": "abcd", "max_tokens": 3, "stream": stream}, headers=headers)
    found = scraped(served)
    assert [value for name, value in found.items() if name.startswith("quintet:client_disconnects_total") and value] == []
    plain, recorded = lines(caplog)
    told = ("status", "model", "prompt_tokens", "completion_tokens", "finish")
    assert [recorded.get(fact) for fact in told] == [plain[fact] for fact in told]
    assert plain.keys() == recorded.keys()


@pytest.mark.fault("G10")
def test_hostile_requests_make_no_new_series() -> None:
    served = app()
    call(served, {"prompt": "a"})
    call(served, {"prompt": "a"}, method="WEIRD0", path="/nope")
    scraped(served)  # is counted itself
    before = len(scraped(served))
    for number in range(200):
        call(served, {"prompt": "a", "model": f"x{number}", "user": f"u{number}"}, path=f"/nope/{number}", method=f"M{number}")
        call(served, {"prompt": "a", "model": f"x{number}", "user": f"u{number}"}, headers=[*JSON, ("x-request-id", str(number))])
    assert len(scraped(served)) - before <= 2  # the 404 of an unknown model is new


@pytest.mark.fault("D15")
@pytest.mark.parametrize(
    ("state", "ready", "alive"),
    [
        (State.LOADING, 503, 200),
        (State.READY, 200, 200),
        (State.STALLED, 503, 200),
        (State.UNSOUND, 503, 200),
        (State.DRAINING, 503, 200),
        (State.DEAD, 503, 503),
        (State.CLOSED, 503, 200),
    ],
)
def test_ready_means_it_can_take_work_and_alive_that_no_restart_is_needed(state: State, ready: int, alive: int) -> None:
    served = app(ScriptedBackend(state=state))
    got = {path: call(served, method="GET", path=path).status for path in ("/readyz", "/health", "/v1/health", "/livez", "/ping")}
    assert got == {"/readyz": ready, "/health": ready, "/v1/health": ready, "/livez": alive, "/ping": alive}


def test_a_drain_is_told_where_no_model_is_loaded_too() -> None:
    registry = Registry([Model("cat", ScriptedBackend, lazy=True)], name_models([("cat",)]))
    served = create_several(registry, ServerConfig())
    asked = [("/health", ""), ("/v1/health", ""), ("/readyz", ""), ("/health/models", ""), ("/health/models", "model=cat")]
    for expected in ((200, "ok"), (503, "draining")):
        told = [call(served, method="GET", path=path, query=query) for path, query in asked]
        assert {(answer.status, answer.json()["status"]) for answer in told} == {expected}
        registry.drain()
    assert call(served, method="GET", path="/livez").status == 200


def test_the_load_is_told_as_vllm_tells_it() -> None:
    answer = call(app(ScriptedBackend(told=Health(State.READY, running=2, waiting=3))), method="GET", path="/load")
    assert (answer.status, answer.json()) == (200, {"server_load": 5})


def test_the_version_is_told() -> None:
    assert call(app(), method="GET", path="/version").json() == {"version": __version__}


# The access log


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """As they are written; each is one line in either form."""
    records = [record for record in caplog.records if record.name == "quintet.access"]
    assert all(form().format(record).isprintable() for record in records for form in (JsonForm, TextForm))
    return [json.loads(JsonForm().format(record)) for record in records]


@pytest.mark.fault("G02")
def test_a_request_is_one_line_of_json(caplog: pytest.LogCaptureFixture) -> None:
    served = app(api_keys=("sk-one",))
    with caplog.at_level(logging.INFO, "quintet.access"):
        headers = [*JSON, ("authorization", "Bearer sk-one"), ("x-request-id", "abc")]
        call(served, {"prompt": "abcd", "max_tokens": 3}, path="/openai/v1/completions", headers=headers)
        call(served, method="GET", path="/secret/place")
    done, refused = lines(caplog)
    assert datetime.fromisoformat(done.pop("time")).tzinfo is not None
    assert (done.pop("level"), done.pop("logger")) == ("info", "quintet.access")
    assert done.pop("ms") >= done.pop("ttft_ms") >= 0
    assert len(done.pop("key")) == 8
    assert done == {
        "method": "POST", "handler": "/completions", "status": 200, "dialect": "openai", "model": "m", "prompt_tokens": 4,
        "completion_tokens": 3, "finish": "length", "request_id": "abc",
    }  # fmt: skip
    assert (refused["handler"], refused["status"], "key" in refused) == ("other", 401, False)


@pytest.mark.fault("G01")
@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_no_line_and_no_metric_holds_what_a_client_wrote(caplog: pytest.LogCaptureFixture, level: int) -> None:
    served = app(api_keys=("canary-key",), admin_key="canary-admin")
    secret = {"prompt": "canary-prompt", "stop": "canary-stop", "user": "canary-user", "canary-field": 1, "max_tokens": 2}
    key = ("authorization", "Bearer canary-key")
    with caplog.at_level(level):
        for body in (secret, {**secret, "stream": True}, {**secret, "model": "canary-model"}, {**secret, "n": "canary-prompt"}):
            call(served, body, headers=[*JSON, key], query="key=canary-query")
            call(served, body, headers=[*JSON, ("authorization", "Bearer canary-key2")])
        call(served, secret, path="/canary-path", headers=[*JSON, key, (HEADER, "canary-field")])
    assert len(lines(caplog)) == 9
    text = caplog.text + repr(lines(caplog)) + repr(scraped(served, authorization="Bearer canary-admin"))
    assert [secret for secret in SECRETS if secret in text] == []


@pytest.mark.fault("G03")
def test_a_client_cannot_break_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "quintet.access"):
        call(app(), {"prompt": "a"}, headers=[*JSON, ("x-request-id", "a\r\nb"), (HEADER, "\x1b[2J")], path="/v1/completions\n{}")
    assert len(lines(caplog)) == 1
    assert all(record.message.isprintable() for record in caplog.records)


def test_a_source_of_time_is_asked_and_not_the_machine() -> None:
    times = iter(range(0, 1000, 10))
    source = Source(clock=lambda: float(next(times)))
    served = create_app(ScriptedBackend(), ServerConfig(), ("m",), source=source)
    call(served, {"prompt": "a", "max_tokens": 1})
    assert isinstance(served, App)
    found = scraped(served)
    first, whole = found["vllm:time_to_first_token_seconds_sum{}"], found["vllm:e2e_request_latency_seconds_sum{}"]
    assert 0 < first < whole
    assert first % 10 == whole % 10 == 0
    parts = ("queue", "prefill", "decode")
    assert 0 < sum(found[f"vllm:request_{part}_time_seconds_sum{{}}"] for part in parts) < whole
    assert [found[f"vllm:request_{part}_time_seconds_count{{}}"] for part in parts] == [1, 1, 1]


@pytest.mark.parametrize("stream", [False, True])
def test_what_an_answer_tells_of_its_times_begins_when_the_request_arrives_and_not_when_it_is_parsed(stream: bool) -> None:
    passed = [0.0]

    def seed() -> int:  # is asked for while a body is parsed, which takes five seconds here
        passed[0] += 5.0
        return 7

    served = create_app(ScriptedBackend(), ServerConfig(), ("m",), source=Source(clock=lambda: passed[0], seed=seed))
    body = {"prompt": "a", "max_tokens": 2, "stream": stream, "perf_metrics_in_response": True}
    told = call(served, body, path="/fireworks/inference/v1/completions").body
    assert b'"server-time-to-first-token":5.0,' in told and b'"server-processing-time":5.0,' in told
    assert b'"tokenizer-duration":0.0,' in told and b'"prefill-duration":0.0,' in told
    assert b'"total_time":5.0,' in call(served, body, path="/cerebras/v1/completions").body
