"""What the Fireworks dialect writes where goldens do not reach: ids, raw output, times, ends that are errors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.dialects.folding import fold as fold_body

from quintet.dialects.base import Identity, ServedModel
from quintet.dialects.beyond import Beyond
from quintet.dialects.fireworks.dialect import Fireworks
from quintet.dialects.fireworks.wire import FireworksRenderer, Options, Shape
from quintet.errors import (
    BadRequest,
    BodyTooLarge,
    EngineFailed,
    Loading,
    MethodNotAllowed,
    ModelNotFound,
    NotAuthorized,
    Overloaded,
    PromptTooLong,
    TooManyRequests,
    UnsupportedMedia,
)
from quintet.events import ChoiceDelta, ChoiceDone, DraftCounts, Event, Failed, Finish, Finished, Timing, TokenText, Usage
from quintet.request import CompletionRequest, Guide, GuideKind, Image, Sampling, Shown, StopRules

IDENTITY = Identity(id="id", created=1, model="m", fingerprint="fp", host="host", deployment="d", concurrent=2)
REQUEST = CompletionRequest(
    model="m",
    prompts=("abb",),
    max_tokens=16,
    n=1,
    echo=False,
    logprobs=None,
    sampling=Sampling(1.0, 1.0, 7),
    stop=StopRules(()),
    stream=False,
    include_usage=True,
    user="",
    token_ids=True,
    prompt_ids=True,
)
OPTIONS = Options(shape=Shape.NONE, top=0, token_ids=True, raw_output=False, perf_metrics=False)


def token(id_: int, text: str, offset: int, logprob: float | None = None) -> TokenText:
    top = () if logprob is None else ((id_, text, logprob),)
    return TokenText(id_, text, text.encode(), logprob, top, offset, top_raw=tuple(text.encode() for _ in top))


EVENTS: list[Event] = [
    ChoiceDelta(0, "", prompt=(97, 98, 98)),
    ChoiceDelta(0, " c", (token(5, " c", 3, -0.25),)),
    ChoiceDelta(0, " d", (token(6, " d", 5, -0.75),)),
    ChoiceDelta(0, "", (token(256, "", 7, -1.0),)),
    ChoiceDone(0, Finish.EOS),
    Finished(
        Usage(3, 3, cached_tokens=1, accepted_tokens=4, rejected_tokens=2),
        Timing(queue=0.125, prompt=0.25, completion=1.0, total=1.5, tokenizer_queue=0.0625, tokenizer=0.03125, place=0.75),
        DraftCounts.of(3, 1).plus(DraftCounts.of(1, 1)).plus(DraftCounts.of(3, 2)),
    ),
]


def fold(options: Options, request: CompletionRequest = REQUEST, events: list[Event] = EVENTS) -> dict[str, Any]:
    return json.loads(fold_body(FireworksRenderer(request, IDENTITY, options), events))  # type: ignore[no-any-return]


def stream(options: Options, events: list[Event] = EVENTS, request: CompletionRequest = REQUEST) -> list[dict[str, Any]]:
    renderer = FireworksRenderer(request, IDENTITY, options)
    return [json.loads(chunk) for event in events for chunk in renderer.feed(event)]


def test_token_ids_come_without_showing_the_prompt() -> None:
    (choice,) = fold(OPTIONS)["choices"]
    assert choice == {
        "text": " c d", "index": 0, "logprobs": None, "finish_reason": "stop", "prompt_token_ids": [97, 98, 98], "token_ids": [5, 6, 256]
    }  # fmt: skip


def test_a_stream_has_the_prompts_ids_in_its_first_chunk() -> None:
    choices = [chunk["choices"][0] for chunk in stream(OPTIONS)]
    assert [choice.get("prompt_token_ids") for choice in choices] == [[97, 98, 98], None, None, None, None]
    assert [choice["token_ids"] for choice in choices] == [[], [5], [6], [256], []]
    assert [choice["text"] for choice in choices] == ["", " c", " d", "", ""]


def test_ids_of_the_whole_prompt_go_with_an_echo_of_its_end() -> None:
    echoed = ChoiceDelta(0, "b", (token(98, "b", 2, -0.5),), (97, 98, 98))
    (choice,) = fold(replace(OPTIONS, shape=Shape.LISTS), replace(REQUEST, echo=True, echo_last=1), [echoed, *EVENTS[1:]])["choices"]
    assert choice["text"] == "b c d"
    assert choice["prompt_token_ids"] == [97, 98, 98]
    assert choice["token_ids"] == [5, 6, 256]
    assert choice["logprobs"]["token_logprobs"] == [-0.5, -0.25, -0.75, -1.0]
    assert choice["logprobs"]["text_offset"] == [2, 3, 5, 7]


def test_without_ids_asked_for_none_are_shown() -> None:
    (choice,) = fold(replace(OPTIONS, token_ids=False), replace(REQUEST, token_ids=False, prompt_ids=False), EVENTS[1:])["choices"]
    assert set(choice) == {"text", "index", "logprobs", "finish_reason"}


def test_raw_output_is_what_went_in_and_came_out() -> None:
    options = replace(OPTIONS, token_ids=False, raw_output=True)
    (choice,) = fold(options, replace(REQUEST, guide=Guide(GuideKind.GRAMMAR, "root ::= x", "response_format")))["choices"]
    assert choice["text"] == " c d"
    assert choice["raw_output"] == {
        "prompt_fragments": ["abb"],
        "prompt_token_ids": [97, 98, 98],
        "completion": " c d",
        "completion_token_ids": [5, 6, 256],
        "completion_logprobs": None,
        "grammar": "root ::= x",
    }


def test_raw_output_has_the_marks_of_a_prompts_images_and_not_the_images() -> None:
    """The SDK has a place for them, which need not be there: they are megabytes, and would come again with each choice."""
    request = replace(REQUEST, prompts=("a<image>b",), images=((Image("data:image/png;base64,eA==", "images[0]"),),))
    (choice,) = fold(replace(OPTIONS, raw_output=True), request)["choices"]
    assert choice["raw_output"]["prompt_fragments"] == ["a<image>b"]
    assert "images" not in choice["raw_output"]


@pytest.mark.parametrize(
    ("guide", "grammar"),
    [
        (None, None),
        (Guide(GuideKind.JSON_OBJECT, "", "response_format"), '{"type":"object"}'),
        (Guide(GuideKind.JSON_SCHEMA, '{"type":"array"}', "response_format"), '{"type":"array"}'),
    ],
)
def test_raw_output_tells_the_schema_that_constrained_it(guide: Guide | None, grammar: str | None) -> None:
    (choice,) = fold(replace(OPTIONS, token_ids=False, raw_output=True), replace(REQUEST, guide=guide))["choices"]
    assert choice["raw_output"]["grammar"] == grammar


def test_raw_output_of_token_ids_with_log_probabilities_ends_a_streamed_choice() -> None:
    options = replace(OPTIONS, shape=Shape.LISTS, token_ids=False, raw_output=True)
    chunks = stream(options, request=replace(REQUEST, prompts=((97, 98, 98),)))
    assert [("raw_output" in chunk["choices"][0], chunk["choices"][0]["finish_reason"]) for chunk in chunks][-2:] == [
        (False, None),
        (True, "stop"),
    ]
    raw = chunks[-1]["choices"][0]["raw_output"]
    assert raw["prompt_fragments"] == [97, 98, 98]
    assert [entry["token_id"] for entry in raw["completion_logprobs"]["content"]] == [5, 6, 256]


@given(st.text('"raw_output:nl,{\\\u00e9'), st.booleans())
@example('"raw_output":null', True)
def test_a_streamed_raw_output_is_where_it_was_whatever_the_texts_are(text: str, scored: bool) -> None:
    """It is written apart from its chunk, also for whoever adds to that."""
    shape = Shape.LISTS if scored else Shape.NONE
    options, request = replace(OPTIONS, shape=shape, top=1, raw_output=True), replace(REQUEST, prompts=(text,), n=2, stream=True)
    events: list[Event] = [ChoiceDelta(index, "", prompt=(97, 98, 98)) for index in (0, 1)]
    events += [ChoiceDelta(index, text, (token(5, text, 3, -0.25),)) for index in (0, 1)]
    events += [*(ChoiceDone(index, Finish.STOP, stop="x") for index in (0, 1)), EVENTS[-1]]
    whole = fold(options, request, events)["choices"]
    plain, more = FireworksRenderer(request, IDENTITY, options), FireworksRenderer(request, IDENTITY, options)
    around = Beyond(more, request, Shown())
    made = [chunk for event in events for chunk in plain.feed(event)]
    ends = [json.loads(chunk)["choices"][0] for chunk in made][-2:]
    assert [end["raw_output"] for end in ends] == [one["raw_output"] for one in whole]
    assert whole[0]["raw_output"]["completion"] == whole[0]["raw_output"]["prompt_fragments"][0] == text
    assert made[-2] == json.dumps(json.loads(made[-2]), separators=(",", ":")).encode()
    told = [json.loads(chunk) for event in events for chunk in around.feed(event)]
    assert [chunk["choices"][0].pop("stop_reason") for chunk in told[-2:]] == ["x", "x"]
    assert told == [json.loads(chunk) for chunk in made]


def test_what_ends_weigh_is_their_raw_output_of_the_last_one_with_the_end_of_all() -> None:
    """The last choice's end waits for the usage."""

    def weights(options: Options, count: int) -> list[float]:
        renderer = FireworksRenderer(replace(REQUEST, n=2, stream=True), IDENTITY, options)
        for index in (0, 1):
            for event in (EVENTS[0], *EVENTS[1:2] * count):
                renderer.feed(event.numbered(index))  # type: ignore[union-attr]
        made = []
        for event in (ChoiceDone(0, Finish.STOP), ChoiceDone(1, Finish.STOP), EVENTS[-1]):
            made.append(renderer.weight(event))
            renderer.feed(event)
        return made

    raw = replace(OPTIONS, raw_output=True)
    assert weights(OPTIONS, 100) == [0, 0, 0]
    assert all(0 < weight < 20 for weight in weights(raw, 100))
    assert all(100 < weight < 120 for weight in weights(replace(raw, shape=Shape.CONTENT), 100))
    first, second, last = weights(raw, 3)
    assert first == second == last


METRICS = {
    "prompt-tokens": 3,
    "speculation-prompt-tokens": 6,
    "speculation-prompt-matched-tokens": 4,
    "speculation-generated-tokens": 7,
    "speculation-acceptance": "1:3/3,2:1/2,3:0/2",
    "cached-prompt-tokens": 1,
    "backend-host": "host",
    "num-concurrent-requests": 2,
    "deployment": "d",
    "server-time-to-first-token": 0.5,
    "server-processing-time": 1.5,
    "tokenizer-queue-duration": 0.0625,
    "tokenizer-duration": 0.03125,
    "prefill-queue-duration": 0.125,
    "prefill-duration": 0.25,
    "generation-queue-duration": 0.75,
    "generation-duration": 1.0,
}
"""The page's sixteen, and the SDK's one more."""


def test_metrics_are_headers_always_and_in_the_body_on_request() -> None:
    for asked in (False, True):
        options = replace(OPTIONS, perf_metrics=asked)
        assert fold(options).get("perf_metrics") == (METRICS if asked else None)
        headers = dict(FireworksRenderer(REQUEST, IDENTITY, options).headers(EVENTS))
        assert headers.keys() == {f"fireworks-{name}" for name in METRICS}
        for name, value in METRICS.items():
            written = headers[f"fireworks-{name}"]
            assert (written if isinstance(value, str) else float(written)) == value


def test_where_headers_went_out_before_the_metrics_are_in_the_body() -> None:
    """Page: "Performance metrics are always included in response headers"; of an answer that took long they cannot be."""
    inside = [FireworksRenderer(REQUEST, IDENTITY, OPTIONS) for _ in range(2)]
    for renderer in (inside[0], Beyond(inside[1], REQUEST, Shown(prompt_logprobs=1))):
        renderer.late()
        assert json.loads(fold_body(renderer, EVENTS))["perf_metrics"] == METRICS


def test_times_that_nobody_took_are_not_said() -> None:
    renderer = FireworksRenderer(
        REQUEST, Identity(id="id", created=1, model="m", fingerprint="fp", host="h\u00f6st\r\n", deployment="d", concurrent=1), OPTIONS
    )
    assert dict(renderer.headers([Finished(Usage(3, 3, cached_tokens=1))])) == {
        "fireworks-prompt-tokens": "3",
        "fireworks-speculation-prompt-tokens": "0",
        "fireworks-speculation-prompt-matched-tokens": "0",
        "fireworks-speculation-generated-tokens": "0",
        "fireworks-speculation-acceptance": "",
        "fireworks-cached-prompt-tokens": "1",
        "fireworks-backend-host": r"h\xf6st\r\n",
        "fireworks-num-concurrent-requests": "1",
        "fireworks-deployment": "d",
    }


def test_a_stream_has_its_metrics_in_the_last_chunk_only() -> None:
    chunks = stream(replace(OPTIONS, perf_metrics=True))
    assert [chunk.get("perf_metrics") for chunk in chunks] == [None] * (len(chunks) - 1) + [METRICS]


def test_a_broken_stream_says_so_to_clients_that_read_chunks_and_to_those_that_read_errors() -> None:
    two = replace(REQUEST, n=3, token_ids=False, prompt_ids=False)
    events: list[Event] = [ChoiceDelta(1, "x"), ChoiceDone(1, Finish.STOP), Failed("The engine failed.")]
    last = stream(replace(OPTIONS, token_ids=False), events, two)[-1]
    assert [(one["index"], one["finish_reason"]) for one in last["choices"]] == [(0, "error"), (2, "error")]
    assert last["error"]["message"] == "The engine failed."


def test_a_choice_whose_end_was_not_sent_is_broken_too() -> None:
    events: list[Event] = [ChoiceDelta(0, "x"), ChoiceDone(0, Finish.STOP), Failed("The engine failed.")]
    last = stream(replace(OPTIONS, token_ids=False), events, replace(REQUEST, prompt_ids=False))[-1]
    assert [(one["index"], one["finish_reason"]) for one in last["choices"]] == [(0, "error")]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadRequest("n", "must be 1", "2"), 400),
        (PromptTooLong("prompt", "is too long"), 400),
        (NotAuthorized("no"), 401),
        (ModelNotFound("no"), 404),
        (MethodNotAllowed("POST"), 405),
        (BodyTooLarge("no"), 413),
        (UnsupportedMedia("no"), 415),
        (TooManyRequests("no"), 429),
        (EngineFailed("no"), 500),
        (RuntimeError("/secret"), 500),
        (Overloaded("no"), 503),
        (Loading("no"), 503),
    ],
)
def test_errors_have_the_providers_status_and_body(error: Exception, status: int) -> None:
    reply = Fireworks().error(error)
    body = json.loads(reply.body)
    assert reply.status == status
    assert set(body) == {"error"}
    assert set(body["error"]) == {"object", "type", "code", "message", "param"}
    assert body["error"]["object"] == "error"
    assert "secret" not in reply.body.decode()


def test_models_are_as_the_older_sdk_types_them() -> None:
    loaded, loading = ServedModel("org/m", 1, 2048), ServedModel("m", 1)
    listed = json.loads(Fireworks().models([loaded, loading]))
    assert listed["object"] == "list"
    assert [one.get("context_length", "none") for one in listed["data"]] == [2048, "none"]
    assert json.loads(Fireworks().model(loaded)) == listed["data"][0]
