"""The Cerebras dialect: what a request means, and what goldens do not reach of its answers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.dialects.folding import fold as fold_body
from tests.support.requests import MINIMAL

from quintet.dialects.base import Identity, ServedModel
from quintet.dialects.cerebras.dialect import Cerebras
from quintet.dialects.cerebras.grammar import guide
from quintet.errors import BadRequest, ModelNotFound, NotAuthorized, Overloaded, PromptTooLong, TooManyRequests, Unsatisfiable, Unsupported
from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finish, Finished, Timing, TokenText, Usage
from quintet.request import CompletionRequest, Sampling, StopRules

IDENTITY = Identity(id="0", created=5, model="m", fingerprint="fp_1")


def parse(**fields: object) -> CompletionRequest:
    return Cerebras().parse(json.dumps(fields).encode(), fresh_seed=7).request


def token(id_: int, text: str, offset: int) -> TokenText:
    return TokenText(id_, text, text.encode(), -0.5, ((id_, text, -0.5),), offset)


def test_defaults_are_those_of_the_page() -> None:
    assert parse() == replace(MINIMAL, prompts=("",), max_tokens=None, include_usage=True)


def test_every_field_arrives() -> None:
    request = parse(
        model="m", prompt=[[1, 2], [3]], max_tokens=0, n=2, echo=True, logprobs=20, temperature=1.5, top_p=0.25, seed=9, stop=["x", "y"],
        stream=True, stream_options={"include_usage": False}, user="u", prompt_cache_key="k", best_of=2,
    )  # fmt: skip
    assert request == CompletionRequest(
        model="m", prompts=((1, 2), (3,)), max_tokens=0, n=2, echo=True, logprobs=20, sampling=Sampling(1.5, 0.25, 9, seeded=True),
        stop=StopRules(("x", "y")), stream=True, include_usage=False,
        user="u", best_of=2, cache_salt="key:k",
    )  # fmt: skip


def test_log_probabilities_of_0_are_on_and_of_null_are_off() -> None:
    assert parse(logprobs=0).logprobs == 0
    assert parse(logprobs=None).logprobs is None


def test_the_usage_of_a_stream_can_only_be_turned_off() -> None:
    assert parse(stream=True).include_usage
    assert parse(stream=True, stream_options={}).include_usage
    assert parse(stream=True, stream_options={"include_usage": None}).include_usage
    assert not parse(stream=True, stream_options={"include_usage": False}).include_usage


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"n": 2, "best_of": 1}, "best_of", "at least n"),
        ({"echo": True, "return_raw_tokens": True}, "echo", "together with return_raw_tokens"),
        ({"best_of": 2, "stream": True}, "best_of", "with stream: true"),
        ({"suffix": " end"}, "suffix", "is not supported by Cerebras"),
        ({"reasoning_format": "hidden"}, "reasoning_format", "nowhere to put reasoning"),
        ({"temperature": 2}, "temperature", "between 0 and 1.5"),
    ],
)
def test_what_is_refused_is_named(fields: dict[str, object], param: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        parse(**fields)
    assert caught.value.param == param


def test_an_empty_suffix_is_none_as_with_openais_api() -> None:
    """Clients of that API send one where there is nothing behind the text."""
    assert parse(suffix="").suffix == ""


def test_candidates_are_as_many_as_choices_unless_more_are_asked_for() -> None:
    assert [parse(n=2).best_of, parse(n=2, best_of=None).best_of, parse(n=2, best_of=5).best_of] == [2, 2, 5]


def test_raw_tokens_need_ids_and_no_log_probabilities() -> None:
    request = parse(return_raw_tokens=True)
    assert (request.token_ids, request.logprobs) == (True, None)
    assert not parse().token_ids


def test_every_control_arrives() -> None:
    request = parse(frequency_penalty=-2, presence_penalty=2, logit_bias={"7": 1.5}, min_tokens=-1, grammar_root="ws")
    assert request.sampling == Sampling(
        1.0, 1.0, 7, frequency_penalty=-2.0, presence_penalty=2.0, logit_bias=((7, 1.5),), min_tokens=-1
    )  # fmt: skip
    assert request.guide == guide("ws", "grammar_root")


@pytest.mark.fault("A15")
def test_at_least_is_at_most_at_most() -> None:
    assert parse(min_tokens=4, max_tokens=4).sampling.min_tokens == 4
    assert parse(min_tokens=-1, max_tokens=0).sampling.min_tokens == -1
    assert parse(min_tokens=4).sampling.min_tokens == 4
    with pytest.raises(BadRequest, match="at most max_tokens, got min_tokens 5 with max_tokens 4") as caught:
        parse(min_tokens=5, max_tokens=4)
    assert caught.value.param == "min_tokens"


def test_fields_of_other_dialects_are_unknown() -> None:
    parsed = Cerebras().parse(b'{"safety_model": 1, "echo_last": 2, "stream_options": {"x": 1}}', 7)
    assert parsed.ignored == ("safety_model", "echo_last", "stream_options.x")


def render(request: CompletionRequest, events: list[Event]) -> tuple[list[Any], Any]:
    streaming = Cerebras().renderer(request, IDENTITY)
    chunks = [json.loads(chunk) for event in events for chunk in streaming.feed(event)]
    return chunks, json.loads(fold_body(Cerebras().renderer(replace(request, stream=False), IDENTITY), events))


def test_raw_tokens_take_the_place_of_text() -> None:
    """Page, return_raw_tokens: "Return raw tokens instead of text."""
    events: list[Event] = [
        ChoiceDelta(0, "ab", (token(5, "a", 9), token(6, "b", 10))),
        ChoiceDelta(0, "c", (token(7, "c", 11),)),
        ChoiceDone(0, Finish.EOS),
        Finished(Usage(9, 3)),
    ]
    chunks, whole = render(parse(stream=True, return_raw_tokens=True), events)
    assert [chunk["choices"][0]["tokens"] for chunk in chunks] == [[5, 6], [7], []]
    assert whole["choices"] == [{"index": 0, "finish_reason": "stop", "tokens": [5, 6, 7]}]
    assert not any("text" in chunk["choices"][0] for chunk in chunks)


def test_raw_tokens_of_a_choice_without_any_are_an_empty_list() -> None:
    _, whole = render(parse(return_raw_tokens=True), [ChoiceDone(0, Finish.LENGTH), Finished(Usage(9, 0))])
    assert whole["choices"] == [{"index": 0, "finish_reason": "length", "tokens": []}]


def test_raw_tokens_and_log_probabilities_go_together() -> None:
    events: list[Event] = [ChoiceDelta(0, "ab", (token(5, "a", 9), token(6, "b", 10))), ChoiceDone(0, Finish.EOS), Finished(Usage(9, 2))]
    _, whole = render(parse(logprobs=0, return_raw_tokens=True), events)
    lists = {"text_offset": [0, 1], "token_logprobs": [-0.5, -0.5], "tokens": ["a", "b"]}
    assert whole["choices"] == [{"index": 0, "finish_reason": "stop", "tokens": [5, 6], "logprobs": lists}]


def test_a_stream_leaves_the_usage_out_if_it_is_told_to_and_json_never_does() -> None:
    events: list[Event] = [ChoiceDone(0, Finish.LENGTH), Finished(Usage(9, 0))]
    chunks, whole = render(parse(stream=True, stream_options={"include_usage": False}), events)
    assert [("usage" in chunk, "time_info" in chunk) for chunk in chunks] == [(False, True)]
    assert "usage" in whole


def test_times_are_seconds_to_the_microsecond_in_the_last_chunk_and_in_json() -> None:
    events: list[Event] = [
        ChoiceDelta(0, "a"),
        ChoiceDone(0, Finish.LENGTH),
        Finished(Usage(1, 1), Timing(queue=1e-9, prompt=0.1234567, completion=2.0, total=3.0)),
    ]
    chunks, whole = render(parse(stream=True), events)
    expected = {"queue_time": 0.0, "prompt_time": 0.123457, "completion_time": 2.0, "total_time": 3.0, "created": 5}
    assert whole["time_info"] == chunks[-1]["time_info"] == expected
    assert [("time_info" in chunk, chunk["choices"][0].get("finish_reason")) for chunk in chunks] == [(False, None), (True, "length")]


def test_tokens_a_second_can_be_computed_of_a_single_token_too() -> None:
    """From the first token to the last no time has gone by, and clients divide by it."""
    events: list[Event] = [
        ChoiceDelta(0, "a"),
        ChoiceDone(0, Finish.LENGTH),
        Finished(Usage(1, 1), Timing(queue=0.0, prompt=0.5, completion=0.0, total=0.5)),
    ]
    _, whole = render(parse(), events)
    assert whole["time_info"]["completion_time"] > 0


def test_every_chunk_says_what_it_is() -> None:
    chunks, whole = render(parse(stream=True), [ChoiceDelta(0, "a"), ChoiceDone(0, Finish.STOP), Finished(Usage(1, 1))])
    about = {"id": "chatcmpl-0", "object": "text_completion", "created": 5, "model": "m", "system_fingerprint": "fp_1"}
    assert all(about.items() <= one.items() for one in [*chunks, whole])


def test_usage_tells_what_became_of_the_tokens() -> None:
    _, whole = render(
        parse(),
        [ChoiceDone(0, Finish.STOP), Finished(Usage(10, 5, cached_tokens=4, reasoning_tokens=3, accepted_tokens=2, rejected_tokens=1))],
    )
    assert whole["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
        "completion_tokens_details": {
            **{"reasoning_tokens": 3, "accepted_prediction_tokens": 2, "rejected_prediction_tokens": 1, "audio_tokens": 0}
        },
    }


def test_a_stream_that_breaks_ends_with_an_error_that_the_sdk_knows() -> None:
    (frame,) = Cerebras().renderer(parse(stream=True), IDENTITY).feed(Failed("It broke."))
    body = json.loads(frame)
    assert body["status_code"] == 500
    assert body["error"] == {name: body[name] for name in ("message", "type", "param", "code")}
    assert body["message"] == "It broke."


@pytest.mark.parametrize(
    ("error", "status", "type_", "param", "code"),
    [
        (BadRequest("n", "must be 1"), 400, "invalid_request_error", "n", "wrong_api_format"),
        (BadRequest("n", "must be an integer", code="invalid_type"), 400, "invalid_request_error", "n", "wrong_api_format"),
        (BadRequest("", "must be JSON", code="invalid_json"), 400, "invalid_request_error", "validation_error", "wrong_api_format"),
        (Unsupported("suffix", "is not there"), 400, "invalid_request_error", "suffix", "wrong_api_format"),
        (Unsatisfiable("no"), 400, "invalid_request_error", "", "unsatisfiable"),
        (PromptTooLong("prompt", "is too long"), 400, "invalid_request_error", "prompt", "context_length_exceeded"),
        (NotAuthorized("no"), 401, "invalid_request_error", "api_key", "wrong_api_key"),
        (ModelNotFound("no"), 404, "not_found_error", "model", "model_not_found"),
        (TooManyRequests("no"), 429, "too_many_requests_error", "quota", "rate_limit_exceeded"),
        (Overloaded("no"), 503, "service_unavailable_error", "", "overloaded"),
        (ValueError("a secret path"), 500, "server_error", "", "internal_error"),
    ],
)
def test_errors_are_flat_and_nested_at_once_and_hold_no_null(error: Exception, status: int, type_: str, param: str, code: str) -> None:
    reply = Cerebras().error(error)
    body = json.loads(reply.body)
    nested = body.pop("error")
    assert body.pop("status_code") == reply.status == status
    assert body == nested == {"message": nested["message"], "type": type_, "param": param, "code": code}
    assert "secret" not in reply.body.decode()


def test_models_are_a_list_and_one_is_an_object() -> None:
    served = [ServedModel("a", 3), ServedModel("b/c", 4, 99)]
    body = json.loads(Cerebras().models(served))
    assert body["object"] == "list"
    assert body["data"][0] == {"id": "a", "object": "model", "created": 3, "owned_by": "quintet", "root": "a"}
    assert body["data"][1] == json.loads(Cerebras().model(served[1]))
