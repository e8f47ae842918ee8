"""What a request of the Together dialect means, and what it writes where goldens do not reach."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.dialects.folding import fold as fold_body
from tests.support.requests import MINIMAL

from quintet.dialects.base import Identity, Parsed, ServedModel
from quintet.dialects.beyond import Beyond
from quintet.dialects.fields import Status
from quintet.dialects.together.dialect import FIELDS, Together, for_agent
from quintet.dialects.together.wire import Options
from quintet.errors import BadRequest, EngineFailed, ModelNotFound, NotAuthorized, Overloaded, PromptTooLong, TooManyRequests, Unsupported
from quintet.events import ChoiceDelta, ChoiceDone, Event, Failed, Finish, Finished, TokenText, Usage
from quintet.inputs.capabilities import EVERYTHING, Capabilities
from quintet.inputs.resolve import Known, resolve
from quintet.request import CompletionRequest, Sampling, Shown, StopRules
from quintet.service.fan_out import specs_of

IDENTITY = Identity(id="id", created=1, model="m", fingerprint="fp")
CAPABILITIES = Capabilities(
    model="m", context=20, vocab=300, pieces=[b""] * 300, max_logprobs=5, max_sequences=4, fingerprint="f", supported=EVERYTHING
)
DEFAULTS = replace(MINIMAL, max_tokens=512, include_usage=True, truncate=True)


def parse(**fields: object) -> Parsed:
    return Together().parse(json.dumps({"prompt": "a", **fields}).encode(), fresh_seed=7)


def test_defaults() -> None:
    assert parse() == Parsed(DEFAULTS, (), Options(None))


def test_what_every_engine_can_do_arrives() -> None:
    parsed = parse(model="m", prompt="b", max_tokens=5, n=2, temperature=0.5, top_p=0.25, seed=-1, stop=["x"], echo=True, logprobs=20)
    sampling = Sampling(0.5, 0.25, 2**64 - 1, seeded=True)
    assert parsed.request == CompletionRequest(
        model="m",
        prompts=("b",),
        max_tokens=5,
        n=2,
        echo=True,
        logprobs=20,
        sampling=sampling,
        stop=StopRules(("x",)),
        stream=False,
        include_usage=True,
        user="",
    )
    assert parsed.options == Options(20)


def test_only_a_default_max_tokens_gives_way_to_the_context() -> None:
    assert parse().request.truncate
    assert parse(max_tokens=None).request.truncate
    assert not parse(max_tokens=512).request.truncate


def test_a_default_max_tokens_gives_way_to_a_full_context_with_an_error() -> None:
    """A text that was asked for, and does not come, is no answer."""
    (spec,) = specs_of(parse().request)
    assert (spec.truncate, spec.room) == (True, True)
    full = replace(spec, prompt=(1,) * CAPABILITIES.context)
    with pytest.raises(PromptTooLong):
        resolve([full], Known({}), CAPABILITIES)
    (sequence,) = resolve([replace(full, prompt=full.prompt[1:])], Known({}), CAPABILITIES)
    assert sequence.max_tokens == 1


def test_a_stream_always_has_log_probabilities_for_its_tokens_and_shows_them_on_request() -> None:
    unasked = replace(DEFAULTS, stream=True, logprobs=0, echo_scored=False, spelled=(("logprobs", "stream"),))
    assert parse(stream=True) == Parsed(unasked, (), Options(None))
    assert parse(stream=True, logprobs=0) == Parsed(replace(DEFAULTS, stream=True, logprobs=0), (), Options(0))
    assert parse(stream=True, logprobs=3).request.logprobs == 3


@pytest.mark.parametrize("stream", [False, True])
def test_an_echoed_prompt_is_scored_where_its_log_probabilities_are_asked_for(stream: bool) -> None:
    (text,), (numbers,) = (specs_of(parse(echo=True, stream=stream, logprobs=logprobs).request) for logprobs in (None, 0))
    assert (text.echo, numbers.echo) == (False, True)


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({"top_k": 50}, {"top_k": 50}),
        ({"top_k": 0}, {}),
        ({"top_k": -1}, {}),
        ({"min_p": 0.25}, {"min_p": 0.25}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"repetition_penalty": 0}, {"repetition_penalty": 1e-6}),
        ({"frequency_penalty": -2}, {"frequency_penalty": -2.0}),
        ({"presence_penalty": 2}, {"presence_penalty": 2.0}),
        ({"logit_bias": {"5": -100, "7": 0.5}}, {"logit_bias": ((5, -100.0), (7, 0.5))}),
    ],
)
def test_sampling_controls_arrive_or_are_refused(fields: dict[str, object], sampling: dict[str, object]) -> None:
    later = {field.name for field in FIELDS if field.status is Status.LATER and field.default not in fields.values()}
    if later & set(fields):
        with pytest.raises(Unsupported):
            parse(**fields)
        return
    assert parse(**fields).request == replace(DEFAULTS, sampling=replace(DEFAULTS.sampling, **sampling))  # type: ignore[arg-type]


def test_there_is_one_prompt() -> None:
    for prompt in (["a"], [1], [[1]], 5):
        with pytest.raises(BadRequest) as caught:
            parse(prompt=prompt)
        assert (caught.value.param, caught.value.code) == ("prompt", "invalid_type")


def test_a_moderation_model_is_asked_for_by_its_name() -> None:
    assert parse(safety_model="Meta-Llama/Llama-Guard-7b").request.safety_model == "Meta-Llama/Llama-Guard-7b"
    assert parse(safety_model=None).request.safety_model is parse().request.safety_model is None


def chunks(request: CompletionRequest, events: list[Event]) -> list[dict[str, object]]:
    renderer = Together().renderer(request, IDENTITY, Options(None))
    return [json.loads(chunk) for event in events for chunk in renderer.feed(event)]


def delta(index: int, id_: int, text: str, raw: bytes) -> ChoiceDelta:
    return ChoiceDelta(index, text, (TokenText(id_, text, raw, -0.5, ((id_, text, -0.5),), 0),))


def ids(made: list[dict[str, object]]) -> list[object]:
    return [chunk["token"]["id"] for chunk in made]  # type: ignore[index]


END: list[Event] = [ChoiceDone(0, Finish.LENGTH, seed=3), Finished(Usage(1, 2))]


def test_the_end_goes_with_the_last_token_that_may_come() -> None:
    made = chunks(replace(DEFAULTS, max_tokens=2), [delta(0, 5, "a", b"a"), delta(0, 6, "b", b"b"), *END])
    assert ids(made) == [5, 6]
    assert [chunk["finish_reason"] for chunk in made] == [None, "length"]


def test_a_chunk_without_a_token_names_none() -> None:
    """Page, CompletionChoice: `token_id` is an integer, never null, and not required."""
    request = replace(parse(prompt="b", stream=True, max_tokens=8).request, n=1)
    token, end = chunks(request, [delta(0, 97, "a", b"a"), ChoiceDone(0, Finish.STOP, stop="c"), Finished(Usage(1, 2))])
    assert [chunk["choices"][0]["delta"] for chunk in (token, end)] == [  # type: ignore[index]
        {"role": "assistant", "token_id": 97, "content": "a"},
        {"role": "assistant", "content": ""},
    ]


def test_a_token_without_text_in_the_middle_keeps_its_place() -> None:
    made = chunks(DEFAULTS, [delta(0, 256, "", b""), delta(0, 257, "", b""), delta(0, 6, "b", b"b"), *END])
    assert ids(made) == [256, 257, 6, -1]
    assert [chunk["token"]["special"] for chunk in made] == [True, True, False, True]  # type: ignore[index]


@pytest.mark.parametrize("logprobs", [0, 1])
@pytest.mark.parametrize("agent", ["OpenAI/Python 3.57.0", "AsyncOpenAI/Python 3.57.0"])
def test_openais_sdk_gets_in_chunks_the_lists_that_it_gets_in_json(agent: str, logprobs: int) -> None:
    """It types an object there, and LangChain, which adds up what chunks have, cannot add two numbers."""
    parsed = for_agent(parse(stream=True, logprobs=logprobs), agent)
    renderers = [Together().renderer(parsed.request, IDENTITY, parsed.options) for _ in range(2)]
    events: list[Event] = [delta(0, 5, "a", b"a"), delta(0, 6, "b", b"b"), *END]
    made = [json.loads(chunk) for event in events for chunk in renderers[0].feed(event)]
    told: dict[str, list[object]] = {}
    for chunk in made:
        for name, entries in chunk["choices"][0].get("logprobs", {}).items():
            told.setdefault(name, []).extend(entries)
    assert told == json.loads(fold_body(renderers[1], events))["choices"][0]["logprobs"]
    assert told["tokens"] == ["a", "b"]
    assert ("top_logprobs" in told) == (logprobs > 0)


def test_togethers_own_sdk_gets_a_number_in_chunks() -> None:
    parsed = for_agent(parse(stream=True, logprobs=1), "Together/Python 3.1.1")
    (chunk,) = Together().renderer(parsed.request, IDENTITY, parsed.options).feed(delta(0, 5, "a", b"a"))
    assert json.loads(chunk)["choices"][0]["logprobs"] == -0.5


@pytest.mark.parametrize("text", ['"prompt":null', '{"prompt":null,"prompt":null}', "\u00e9\0"])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_streams_first_chunk_has_the_prompt_of_the_json_whatever_its_text_is(text: str, logprobs: int | None) -> None:
    """It is written apart from its chunk, also for whoever adds to that."""
    parsed = parse(prompt=text, n=2, echo=True, logprobs=logprobs, stream=True)
    events: list[Event] = [ChoiceDelta(index, text, (TokenText(5, text, b"a", None, (), 0),)) for index in (0, 1)]
    events += [*(delta(index, 5, text, b"a") for index in (0, 1)), *(ChoiceDone(index, Finish.LENGTH, seed=3) for index in (0, 1)), END[-1]]
    plain, more, whole = (Together().renderer(parsed.request, IDENTITY, parsed.options) for _ in range(3))
    around = Beyond(more, parsed.request, Shown(token_ids=True))
    made = [chunk for event in events for chunk in plain.feed(event)]
    first, *others = map(json.loads, made)
    assert first["prompt"] == json.loads(fold_body(whole, events))["prompt"]
    assert first["prompt"][0]["text"] == text
    assert made[0] == json.dumps(first, separators=(",", ":")).encode()
    assert not any("prompt" in chunk for chunk in others)
    told = [json.loads(chunk) for event in events for chunk in around.feed(event)]
    added = [[chunk["choices"][0].pop(name, None) for name in ("token_ids", "stop_reason")] for chunk in told]
    assert (told, added) == ([first, *others], [[[5], None], [[5], None], [[], None], [[], None]])


def test_a_broken_stream_first_says_what_was_waiting() -> None:
    made = chunks(replace(DEFAULTS, max_tokens=1), [delta(0, 5, "a", b"a"), Failed("The engine failed.")])
    assert ids(made[:1]) == [5]
    assert made[1] == {"error": {"message": "The engine failed.", "type": "server_error", "param": None, "code": "engine_failed"}}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadRequest("n", "must be 1", "2"), 400),
        (NotAuthorized("no"), 401),
        (PromptTooLong("prompt", "is too long"), 403),
        (PromptTooLong("max_tokens", "is too much"), 403),
        (PromptTooLong("prediction", "is too long"), 400),
        (ModelNotFound("no"), 404),
        (TooManyRequests("no"), 429),
        (EngineFailed("no"), 500),
        (RuntimeError("/secret"), 500),
        (Overloaded("no"), 503),
    ],
)
def test_errors_have_the_providers_status_and_body(error: Exception, status: int) -> None:
    reply = Together().error(error)
    body = json.loads(reply.body)
    assert reply.status == status
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["code"], str)
    assert "secret" not in reply.body.decode()


def test_models_are_a_bare_array_with_prices() -> None:
    (one,) = json.loads(Together().models([ServedModel("org/m", 1, 2048)]))
    assert one["id"] == "org/m"
    assert (one["object"], one["type"], one["context_length"]) == ("model", "language", 2048)
    assert set(one["pricing"]) == {"hourly", "input", "output", "base", "finetune"}
    assert one["config"]["stop"] == []
    assert json.loads(Together().model(ServedModel("org/m", 1, 2048))) == one


def test_the_renderer_takes_only_its_own_options_and_whole_answers() -> None:
    with pytest.raises(TypeError):
        Together().renderer(DEFAULTS, IDENTITY, None)
    with pytest.raises(ValueError, match="do not end"):
        fold_body(Together().renderer(DEFAULTS, IDENTITY, Options(None)), [])
