"""How large an answer may become is counted before anything is computed, and what is too much is refused with its count."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.server.asgi import Answer, call
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend
from tests.support.scripted_backend import request

from quintet.config import ServerConfig
from quintet.errors import BadRequest
from quintet.inputs.answer_size import held_size, require_answer_size
from quintet.inputs.room import Room
from quintet.inputs.sequence import PreparedSequence
from quintet.request import CompletionRequest, Shown
from quintet.server import gate
from quintet.service.fan_out import wants_scores

pytestmark = pytest.mark.fault("B06")


def sequences(asked: CompletionRequest, length: int = 100, most: int = 28) -> list[PreparedSequence]:
    """Of prompts of so many tokens, of which up to so many more are generated."""
    one = PreparedSequence((7,) * length, most, asked.sampling, asked.logprobs, asked.echo or wants_scores(asked))
    return [one] * (len(asked.prompts) * max(asked.n, asked.best_of))


def asked(prompts: int = 1, **changes: object) -> CompletionRequest:
    return replace(replace(request(*["p"] * prompts), max_tokens=28), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "needs", "param"),
    [
        (asked(n=4, best_of=4, logprobs=5, echo=True), 4 * 128 * 6, "n"),
        (asked(n=4, best_of=4, logprobs=5), 4 * 28 * 6, "n"),
        (asked(best_of=4, logprobs=0), 4 * 28, "best_of"),
        (asked(4, logprobs=5, echo=True), 4 * 128 * 6, "prompt"),
        (asked(logprobs=5, echo=True), 128 * 6, "logprobs"),
        (asked(logprobs=0), 28, "max_tokens"),
        (asked(logprobs=0, max_tokens=None), 28, "max_tokens"),
        (asked(logprobs=0, echo=True, max_tokens=0), 128, "echo"),
        (asked(shown=Shown(prompt_logprobs=5), max_tokens=0), 128 * 6, "prompt_logprobs"),
        (asked(shown=Shown(prompt_logprobs=0), max_tokens=0), 128, "prompt_logprobs"),
        (asked(logprobs=1, shown=Shown(prompt_logprobs=5)), 128 * 6, "prompt_logprobs"),
        (asked(logprobs=1, logprob_ids=tuple(range(100))), 28 * 101, "logprob_token_ids"),
    ],
)
def test_an_answer_is_as_large_as_its_choices_tokens_and_alternatives(wanted: CompletionRequest, needs: int, param: str) -> None:
    """It passes at its size and is refused one below; the error tells the size, and names a field that makes it so."""
    require_answer_size(wanted, sequences(wanted), needs)
    with pytest.raises(BadRequest, match=f"may need {needs} ") as refused:
        require_answer_size(wanted, sequences(wanted), needs - 1)
    assert refused.value.param == param


def test_only_what_is_echoed_counts() -> None:
    wanted = asked(logprobs=0, echo=True)
    (whole,) = sequences(wanted)
    last = replace(whole, echo_from=90, prompt_end=95)
    require_answer_size(wanted, [last], 5 + 28)
    with pytest.raises(BadRequest, match="may need 33 "):
        require_answer_size(wanted, [last], 32)


@pytest.mark.parametrize(("stream", "repeated", "tokens"), [(False, False, 128), (True, False, 0), (False, True, 156), (True, True, 28)])
def test_what_is_held_is_a_json_answer_and_what_the_end_of_a_choice_tells_again(stream: bool, repeated: bool, tokens: int) -> None:
    wanted = asked(n=4, best_of=4, logprobs=5, echo=True, stream=stream, repeated=repeated)
    assert held_size(wanted, sequences(wanted)) == 4 * tokens * 6
    text = replace(wanted, logprobs=None)
    assert held_size(text, sequences(text)) == 0


def test_text_alone_is_not_counted() -> None:
    wanted = asked(n=4, best_of=4, echo=True)
    require_answer_size(wanted, sequences(wanted), 1)


def test_prompt_logprobs_that_were_sent_are_named_among_what_may_be_lowered() -> None:
    wanted = asked(shown=Shown(prompt_logprobs=5))
    with pytest.raises(BadRequest, match="another of n, max_tokens and prompt_logprobs"):
        require_answer_size(wanted, sequences(wanted), 1)


def test_the_field_is_named_as_the_client_spelled_it() -> None:
    wanted = asked(logprobs=5, echo=True, spelled=(("logprobs", "top_logprobs"),))
    with pytest.raises(BadRequest, match="another of n, max_tokens and top_logprobs") as refused:
        require_answer_size(wanted, sequences(wanted), 200)
    assert refused.value.param == "top_logprobs"


PATHS = {
    "/openai/v1/completions": {"logprobs": 5},
    "/fireworks/inference/v1/completions": {"logprobs": True, "top_logprobs": 5},
    "/together/v1/completions": {"logprobs": 5},
    "/cerebras/v1/completions": {"logprobs": 5},
    "/novita/openai/v1/completions": {"logprobs": 5},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_every_dialect_refuses_what_is_too_large_before_anything_is_computed(path: str, stream: bool) -> None:
    backend = ScriptedBackend()

    def ask(most: int) -> Answer:
        body = {"prompt": "a", "max_tokens": 10, "n": 3, "stream": stream, **PATHS[path]}
        return call(create_app(backend, ServerConfig(max_logprobs=most)), body, path=path)

    refused = ask(179)
    assert (refused.status, backend.submitted) == (400, 0)
    assert "may need 180 " in json.dumps(refused.json())
    assert ask(180).status == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("scores", "each"), [({}, 0), ({"logprobs": 2}, 3), ({"logprobs": True, "top_logprobs": 2}, 3)])
def test_room_is_taken_for_log_probabilities_that_a_raw_output_tells_again(
    stream: bool, scores: dict[str, object], each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream keeps them until its choices end, and a JSON answer has them twice."""
    taken: list[int] = []

    @contextlib.contextmanager
    def held(_room: Room, _tenant: str, size: int) -> Iterator[None]:
        taken.append(size)
        yield

    monkeypatch.setattr(gate, "LARGE", -1)
    monkeypatch.setattr(Room, "held", held)
    app = create_app(ScriptedBackend(), ServerConfig(dialect="fireworks"))
    for raw in (False, True):
        body = {"prompt": "a", "max_tokens": 4, "n": 3, "stream": stream, "raw_output": raw, **scores}
        assert call(app, body).status == 200
    assert taken == [12 * each * (not stream), 12 * each * (2 - stream)]


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_told_of_every_token_whatever_was_asked_for_is_not_counted(stream: bool) -> None:
    """Together's chunks have their tokens' own log-probabilities; a stream is not refused where the same request in one piece is not."""
    backend = ScriptedBackend()
    body = {"prompt": "a" * 8, "max_tokens": 4, "echo": True, "stream": stream}
    answer = call(create_app(backend, ServerConfig(dialect="together", max_logprobs=1)), body)
    first = answer.json() if answer.header("content-type") == "application/json" else json.loads(answer.parts[0].removeprefix(b"data: "))
    assert (answer.status, first.get("prompt")) == (200, [{"text": "a" * 8}])
    assert call(create_app(backend, ServerConfig(dialect="together", max_logprobs=11)), body | {"logprobs": 0}).status == 400


@pytest.mark.parametrize("path", PATHS)
def test_every_dialect_names_the_field_that_has_the_number_of_alternatives(path: str) -> None:
    refused = call(
        create_app(ScriptedBackend(), ServerConfig(max_logprobs=59)), {"prompt": "a", "max_tokens": 10, **PATHS[path]}, path=path
    )
    name = list(PATHS[path])[-1]
    assert refused.status == 400
    assert f"'{name}' asks for too much" in refused.body.decode()
