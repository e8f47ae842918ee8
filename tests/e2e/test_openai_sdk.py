"""The unmodified OpenAI SDK against a real server on loopback, over the engine with the toy model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from tests.server.live import serving
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend
from tests.support.waiting import until

from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import toy_loader
from quintet.config import EngineConfig, ServerConfig
from quintet.server.asgi import ASGIApp

NAMES = ("org/toy", "toy")
KEY = "sk-local"


class Served:
    """The toy model's engine, and where it is served."""

    engine: Engine
    url: str

    def app(self) -> ASGIApp:
        self.engine = Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22))
        return create_app(self.engine, ServerConfig(api_keys=(KEY,)), NAMES)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    made = Served()
    with serving(made.app) as port:
        made.url = f"http://127.0.0.1:{port}"
        until(lambda: httpx2.get(f"{made.url}/health").status_code == 200)
        yield made


@pytest.fixture(scope="module")
def base(served: Served) -> str:
    return f"{served.url}/v1"


@pytest.fixture(scope="module")
def client(base: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=base, api_key=KEY, max_retries=0, _strict_response_validation=True) as strict:
        yield strict


@pytest.fixture(scope="module")
def lenient(base: str) -> Iterator[OpenAI]:
    """The SDK's strict mode refuses OpenAI's own streams (``finish_reason`` null) and a null first log-probability."""
    with OpenAI(base_url=base, api_key=KEY, max_retries=0) as made:
        yield made


def test_a_strict_client_takes_a_completion(client: OpenAI) -> None:
    answer = client.completions.create(model="toy", prompt="Say this is a test", max_tokens=7, temperature=0)
    assert answer.id.startswith("cmpl-")
    assert (answer.object, answer.model, len(answer.choices)) == ("text_completion", "toy", 1)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (18, 18 + answer.usage.completion_tokens)
    assert answer.system_fingerprint


def test_a_strict_client_takes_every_field_and_none_for_each(client: OpenAI) -> None:
    off: Any = None
    answer = client.completions.create(
        model="toy", prompt=[[72, 105], [72]], max_tokens=5, n=2, logprobs=5, seed=2**63, stop=["zzzz"], temperature=0.7, top_p=0.9,
        user="u", best_of=off, echo=off, frequency_penalty=off, logit_bias=off, presence_penalty=off, stream_options=off, suffix=off,
    )  # fmt: skip
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        lists = choice.logprobs
        assert lists is not None
        assert "".join(lists.tokens or []).removesuffix("<eos>") == choice.text
        assert lists.text_offset is not None
        assert lists.text_offset[0] == (2 if choice.index < 2 else 1)
        for token, logprob, top in zip(lists.tokens or [], lists.token_logprobs or [], lists.top_logprobs or [], strict=True):
            assert top[token] >= logprob
            assert 5 <= len(top) <= 6


def test_equal_seeds_give_equal_text_streamed_or_not_and_each_choice_has_its_own(client: OpenAI, lenient: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "toy", "prompt": "Once upon", "max_tokens": 40, "n": 2, "seed": 5}
    first, second = (client.completions.create(**asked) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in second.choices]
    assert texts[0] != texts[1]
    assert client.completions.create(**{**asked, "n": 1, "seed": 6}).choices[0].text == texts[1]
    streamed = ["", ""]
    for chunk in lenient.completions.create(**asked, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts


def test_a_stream_ends_with_a_reason_and_then_the_usage_that_was_asked_for(lenient: OpenAI) -> None:
    stream = lenient.completions.create(
        model="toy", prompt="a", max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    *chunks, reason, last = list(stream)
    assert {chunk.id for chunk in chunks} == {last.id}
    assert all(chunk.usage is None and chunk.choices[0].finish_reason is None for chunk in chunks)
    assert reason.choices[0].finish_reason in ("length", "stop")
    assert last.choices == []
    assert last.usage is not None
    whole = lenient.completions.create(model="toy", prompt="a", max_tokens=8, temperature=0)
    assert whole.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


def test_scoring_as_lm_eval_does_it(lenient: OpenAI) -> None:
    """Lists one longer than the prompt, non-empty maps after the first, and greedy told by equal floats."""
    prompt = list(b"The sky is blue")
    answer = lenient.completions.create(model="toy", prompt=[prompt], echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1234)
    lists = answer.choices[0].logprobs
    assert lists is not None
    logprobs: list[Any] = list(lists.token_logprobs or [])
    tops: list[Any] = list(lists.top_logprobs or [])
    assert len(logprobs) == len(tops) == len(prompt) + 1
    assert logprobs[0] is None
    assert tops[0] is None
    assert all(tops[1:])
    assert logprobs[-1] == max(tops[-1].values())  # the generated token, at temperature 0
    again = lenient.completions.create(model="toy", prompt=[prompt], echo=True, logprobs=1, max_tokens=0)
    assert again.choices[0].logprobs is not None
    assert again.choices[0].logprobs.token_logprobs == logprobs[:-1]
    assert again.choices[0].text == "The sky is blue"


def test_no_prompt_begins_a_document(client: OpenAI) -> None:
    answer = client.completions.create(model="toy", prompt="", max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 1


def test_many_async_clients_at_once_get_what_each_gets_alone(base: str, client: OpenAI) -> None:
    async def ask(seed: int, made: AsyncOpenAI) -> str:
        stream = await made.completions.create(model="toy", prompt=f"p{seed % 3}", max_tokens=20, seed=seed, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def all_() -> list[str]:
        async with AsyncOpenAI(base_url=base, api_key=KEY, max_retries=0) as made:
            return await asyncio.gather(*(ask(seed, made) for seed in range(12)))

    alone = [client.completions.create(model="toy", prompt=f"p{seed % 3}", max_tokens=20, seed=seed).choices[0].text for seed in range(12)]
    assert asyncio.run(all_()) == alone


def test_models_are_listed_and_retrieved_though_a_name_holds_a_slash(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == list(NAMES)
    assert client.models.retrieve("org/toy").id == "org/toy"


@pytest.mark.parametrize(
    ("fields", "error", "code", "param"),
    [
        ({"max_tokens": 5_000_000}, openai.BadRequestError, "context_length_exceeded", "max_tokens"),
        ({"max_tokens": -1}, openai.BadRequestError, "invalid_value", "max_tokens"),
        ({"prompt": [999_999]}, openai.BadRequestError, "invalid_value", "prompt"),
        ({"logprobs": 6}, openai.BadRequestError, "invalid_value", "logprobs"),
        ({"suffix": "x"}, openai.BadRequestError, "unsupported_parameter", "suffix"),
        ({"model": "gpt-3.5-turbo-instruct"}, openai.NotFoundError, "model_not_found", "model"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_names_its_field(
    client: OpenAI, stream: bool, fields: dict[str, Any], error: type[openai.APIStatusError], code: str, param: str
) -> None:
    with pytest.raises(error) as caught:
        client.completions.create(**{"model": "toy", "prompt": "a", "stream": stream, **fields})
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.request_id
    assert f"'{param}" in str(caught.value) or code == "model_not_found"


def test_a_wrong_key_is_an_authentication_error_in_the_words_of_the_api(base: str) -> None:
    with OpenAI(base_url=base, api_key="wrong") as stranger, pytest.raises(openai.AuthenticationError) as caught:
        stranger.models.list()
    assert (caught.value.type, caught.value.param, caught.value.code) == ("invalid_request_error", None, "invalid_api_key")


def test_an_unknown_field_is_ignored_and_said_so(client: OpenAI) -> None:
    raw = client.completions.with_raw_response.create(model="toy", prompt="a", max_tokens=1, extra_body={"not_a_field": 1})
    assert "not_a_field" in raw.headers["warning"]
    assert raw.parse().choices[0].finish_reason


@pytest.mark.fault("E05")
def test_a_stream_that_breaks_raises_after_the_text_that_came() -> None:
    with serving(lambda: create_app(ScriptedBackend(break_after=2), ServerConfig())) as port:
        seen: list[str] = []
        with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0) as made:
            stream = made.completions.create(model="scripted", prompt="a", stream=True)
            with pytest.raises(openai.APIError, match="The engine failed"):
                seen.extend(chunk.choices[0].text for chunk in stream)
            with pytest.raises(openai.InternalServerError):
                made.completions.create(model="scripted", prompt="a")
    assert seen == [" the", " cat"]


def test_a_client_that_closes_its_stream_frees_the_engine(served: Served, lenient: OpenAI) -> None:
    streams = [lenient.completions.create(model="toy", prompt=[97], n=64, max_tokens=4000, seed=one, stream=True) for one in range(2)]
    for stream in streams:
        next(iter(stream))
    assert served.engine.health().running
    steps = served.engine.health().counts.steps
    for stream in streams:
        stream.close()
    until(lambda: served.engine.health().running == served.engine.health().waiting == 0)
    assert served.engine.health().counts.steps < steps + 4000


def test_a_disconnect_frees_the_work_within_a_quarter_of_a_second(served: Served, lenient: OpenAI) -> None:
    """Of processor time, which all that runs here spends, and the best of a few tries: a busy test machine adds nothing to it."""
    best = 60.0
    for seed in range(5):
        stream = lenient.completions.create(model="toy", prompt=[97], n=32, max_tokens=4000, seed=seed, stream=True)
        next(iter(stream))
        assert served.engine.health().running
        closed = time.process_time()
        stream.close()
        until(lambda: served.engine.health().running == served.engine.health().waiting == 0)
        best = min(best, time.process_time() - closed)
    assert best <= 0.25
