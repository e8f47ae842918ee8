"""The Novita dialect: what a request means, and what goldens do not reach of its answers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.support.requests import MINIMAL

from quintet.dialects.base import Identity, ServedModel
from quintet.dialects.novita.dialect import Novita
from quintet.errors import BadRequest, BodyTooLarge, ModelNotFound, NotAuthorized, Overloaded, PromptTooLong, TooManyRequests
from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finish, Finished, Usage
from quintet.request import CompletionRequest, Sampling, StopRules

IDENTITY = Identity(id="0", created=5, model="m", fingerprint="fp_1")


def parse(**fields: object) -> CompletionRequest:
    return Novita().parse(json.dumps({"prompt": "a", **fields}).encode(), fresh_seed=7).request


def test_defaults_are_those_of_the_page() -> None:
    assert parse() == replace(MINIMAL, stop=StopRules((), include=True))


def test_every_field_arrives() -> None:
    request = parse(
        model="m", prompt=["a", "b"], max_tokens=0, n=2, logprobs=5, temperature=2, top_p=0.25, seed=-1, stop="x", stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    assert request == CompletionRequest(
        model="m", prompts=("a", "b"), max_tokens=0, n=2, echo=False, logprobs=5, sampling=Sampling(2.0, 0.25, 2**64 - 1, seeded=True),
        stop=StopRules(("x",), include=True), stream=True,
        include_usage=True, user="", best_of=2,
    )  # fmt: skip


@pytest.mark.parametrize("sent", [{"temperature": 0}, {"top_p": 1e-300}])
def test_what_leaves_only_the_likeliest_token_is_greedy(sent: dict[str, float]) -> None:
    assert parse(**sent).sampling == Sampling(0.0, 1.0, 7)


@pytest.mark.parametrize("name", ["n", "top_k"])
def test_printed_ranges_include_their_bounds(name: str) -> None:
    """Page: "Required range: `1 < x < 128`", and the default of ``n`` is 1."""
    for outside in (0, 129):
        with pytest.raises(BadRequest, match="must be between 1 and 128"):
            parse(**{name: outside})
    for inside in (1, 128):
        request = parse(**{name: inside})
        assert {"n": request.n, "top_k": request.sampling.top_k}[name] == inside


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"n": 2, "best_of": 1}, "best_of", "at least n"),
        ({"best_of": 2, "stream": True}, "best_of", "with stream: true"),
        ({"prompt": None}, "prompt", "is required"),
        ({"stream_options": {}}, "stream_options", "only allowed with stream"),
        ({"top_p": 0}, "top_p", "above 0, up to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty", "above 0, up to 2"),
    ],
)
def test_what_is_refused_is_named(fields: dict[str, object], param: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        parse(**fields)
    assert caught.value.param == param


def test_every_control_arrives() -> None:
    request = parse(
        frequency_penalty=-2, presence_penalty=2, repetition_penalty=1.5, top_k=128, min_p=1, logit_bias={"1639": 6, "7": -0.5}
    )  # fmt: skip
    assert request.sampling == Sampling(
        1.0, 1.0, 7, top_k=128, min_p=1.0, repetition_penalty=1.5, frequency_penalty=-2.0, presence_penalty=2.0,
        logit_bias=((1639, 6.0), (7, -0.5)),
    )  # fmt: skip


def test_a_repetition_penalty_can_be_divided_by_in_single_precision() -> None:
    assert parse(repetition_penalty=5e-324).sampling.repetition_penalty == 1e-6


def test_candidates_are_as_many_as_choices_unless_more_are_asked_for() -> None:
    assert [parse(n=2).best_of, parse(n=2, best_of=None).best_of, parse(n=2, best_of=5).best_of] == [2, 2, 5]


def test_fields_that_it_does_not_have_are_unknown() -> None:
    assert Novita().parse(b'{"prompt": "a", "echo": 5, "suffix": 1, "user": []}', 7).ignored == ("echo", "suffix", "user")


EVENTS: list[Event] = [
    ChoiceDelta(0, "a"),
    ChoiceDone(0, Finish.STOP),
    ChoiceDone(1, Finish.LENGTH),
    Finished(Usage(3, 2, cached_tokens=1)),
]
COUNTS = {"completion_tokens": 2, "prompt_tokens": 3, "total_tokens": 5}


def test_without_the_option_the_usage_is_in_the_finish_chunk_that_comes_last() -> None:
    renderer = Novita().renderer(parse(n=2, stream=True), IDENTITY)
    chunks = [json.loads(chunk) for event in EVENTS for chunk in renderer.feed(event)]
    assert [chunk["usage"] for chunk in chunks] == [None, None, COUNTS]
    assert chunks[-1]["choices"] == [{"finish_reason": "length", "index": 1, "logprobs": None, "text": ""}]


def test_with_the_option_the_usage_is_in_a_chunk_of_its_own() -> None:
    renderer = Novita().renderer(parse(n=2, stream=True, stream_options={"include_usage": True}), IDENTITY)
    chunks = [json.loads(chunk) for event in EVENTS for chunk in renderer.feed(event)]
    assert [(chunk["usage"], len(chunk["choices"])) for chunk in chunks] == [(None, 1), (None, 1), (None, 1), (COUNTS, 0)]


def test_a_stream_that_breaks_ends_with_an_error_object() -> None:
    (frame,) = Novita().renderer(parse(stream=True), IDENTITY).feed(Failed("It broke."))
    assert json.loads(frame) == {"error": {"code": 500, "reason": "ENGINE_FAILED", "message": "It broke.", "metadata": {}}}


@pytest.mark.parametrize(
    ("error", "status", "reason", "metadata"),
    [
        (BadRequest("n", "must be 1"), 400, "INVALID_REQUEST_BODY", {"param": "n", "code": "invalid_value"}),
        (BadRequest("", "must be JSON"), 400, "INVALID_REQUEST_BODY", {}),
        (PromptTooLong("prompt", "is too long"), 400, "INVALID_REQUEST_BODY", {"param": "prompt", "code": "context_length_exceeded"}),
        (NotAuthorized("no"), 401, "FAILED_TO_AUTH", {}),
        (ModelNotFound("no"), 404, "MODEL_NOT_FOUND", {}),
        (BodyTooLarge("no"), 413, "BODY_TOO_LARGE", {}),
        (TooManyRequests("no"), 429, "RATE_LIMIT_EXCEEDED", {}),
        (Overloaded("no"), 503, "OVERLOADED", {}),
        (ValueError("a secret path"), 500, "INTERNAL_ERROR", {}),
    ],
)
def test_errors_have_code_reason_message_and_metadata_also_where_javascript_reads_them(
    error: Exception, status: int, reason: str, metadata: dict[str, str]
) -> None:
    """OpenAI's SDK for JavaScript and Vercel's know no error but the one under ``error``."""
    reply = Novita().error(error)
    body = json.loads(reply.body)
    assert body.pop("error") == body
    assert body.pop("message")
    assert body == {"code": reply.status, "reason": reason, "metadata": metadata}
    assert reply.status == status
    assert "secret" not in reply.body.decode()


def test_models_have_what_novita_lists_and_what_the_sdk_requires() -> None:
    served = [ServedModel("a", 3), ServedModel("b/c", 4, 99)]
    first, second = json.loads(Novita().models(served))["data"]
    assert {"id": "b/c", "object": "model", "created": 4, "owned_by": "quintet"}.items() <= second.items()
    assert {"title": "b/c", "context_size": 99, "input_token_price_per_m": 0, "output_token_price_per_m": 0}.items() <= second.items()
    assert "context_size" not in first
    assert second == json.loads(Novita().model(served[1]))
