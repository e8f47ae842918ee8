"""The unmodified Cerebras SDK, strict, against a real server on loopback, over the engine with the toy model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.live import serving
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import toy_loader
from quintet.config import EngineConfig, ServerConfig

sdk = pytest.importorskip("cerebras.cloud.sdk")

KEY = "csk-local"
NAMES = ("org/toy", "toy")
PAGE: dict[str, Any] = {"prompt": "It was a dark and stormy night", "max_tokens": 100, "model": "toy", "logprobs": 5}
"""The page's example, but for the model's name."""
STRICT: dict[str, Any] = {"api_key": KEY, "max_retries": 0, "_strict_response_validation": True}


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    config = ServerConfig(api_keys=(KEY,))
    with serving(lambda: create_app(Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22)), config, NAMES)) as port:
        url = f"http://127.0.0.1:{port}/cerebras"
        with sdk.Cerebras(base_url=url, api_key=KEY, max_retries=0) as client:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                try:
                    client.completions.create(model="toy", prompt="a", max_tokens=1)
                    break
                except sdk.InternalServerError:
                    time.sleep(0.01)
        yield url


@pytest.fixture(scope="module")
def client(base: str) -> Iterator[Any]:
    with sdk.Cerebras(base_url=base, **STRICT) as made:
        yield made


def test_the_example_of_the_page(client: Any) -> None:
    answer = client.completions.create(**PAGE, seed=1)
    (choice,) = answer.choices
    lists = choice.logprobs
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model, answer.system_fingerprint) == ("text_completion", "toy", "fp_toy_1")
    assert "".join(lists.tokens).removesuffix("<eos>") == choice.text
    assert lists.text_offset[0] == 0
    assert len(lists.tokens) == len(lists.text_offset) == len(lists.top_logprobs)
    for token, value, top in zip(lists.tokens, lists.token_logprobs, lists.top_logprobs, strict=True):
        assert 5 <= len(top) <= 6
        assert top[token] >= value
    assert answer.usage.prompt_tokens == 30
    assert answer.usage.total_tokens == 30 + answer.usage.completion_tokens
    times = answer.time_info
    assert times.created == answer.created
    assert 0 < times.completion_time <= times.queue_time + times.prompt_time + times.completion_time <= times.total_time + 1e-5


def test_the_example_of_the_page_streamed(client: Any) -> None:
    whole = client.completions.create(**PAGE, seed=1)
    *chunks, last = list(client.completions.create(**PAGE, seed=1, stream=True))
    assert all(chunk.usage is None and chunk.time_info is None and chunk.choices[0].finish_reason is None for chunk in chunks)
    assert {chunk.system_fingerprint for chunk in [*chunks, last]} == {"fp_toy_1"}
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert [offset for chunk in chunks for offset in chunk.choices[0].logprobs.text_offset] == whole.choices[0].logprobs.text_offset
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert last.time_info is not None


def test_the_example_of_the_page_async(base: str, client: Any) -> None:
    async def ask() -> tuple[str, str]:
        async with sdk.AsyncCerebras(base_url=f"{base}/v1", **STRICT) as made:
            answer = await made.completions.create(**PAGE, seed=3)
            stream = await made.completions.create(**PAGE, seed=3, stream=True)
            return answer.choices[0].text, "".join([chunk.choices[0].text async for chunk in stream])

    whole, streamed = asyncio.run(ask())
    assert whole == streamed == client.completions.create(**PAGE, seed=3).choices[0].text


def test_every_argument_and_none_for_each(client: Any) -> None:
    names = ("best_of", "echo", "frequency_penalty", "grammar_root", "logit_bias", "min_tokens", "presence_penalty", "prompt_cache_key")
    off = dict.fromkeys((*names, "reasoning_format", "suffix"))
    answer = client.completions.create(
        model="toy", prompt=[[72, 105], [72]], max_tokens=5, n=2, logprobs=0, seed=2**63, stop=["zzzz"], temperature=1.5, top_p=0.9,
        user="u", return_raw_tokens=False, stream_options={"include_usage": True}, **off,
    )  # fmt: skip
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert all(choice.logprobs.token_logprobs and choice.logprobs.top_logprobs is None for choice in answer.choices)


@pytest.mark.parametrize("stop", [None, ["e"]])
def test_raw_tokens_are_the_ids_of_the_text(client: Any, stop: list[str] | None) -> None:
    asked: dict[str, Any] = {"model": "toy", "prompt": [72, 105], "max_tokens": 40, "seed": 2, "stop": stop}
    text = client.completions.create(**asked).choices[0].text
    (raw,) = client.completions.create(**asked, return_raw_tokens=True).choices
    assert raw.text is None
    assert bytes(token for token in raw.tokens if token < 256).decode() == text  # a token of the toy is a byte, 256 the end
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, return_raw_tokens=True, stream=True)]
    assert [token for chunk in chunks for token in chunk.tokens] == raw.tokens
    assert all(chunk.text is None for chunk in chunks)


def test_min_tokens_keep_a_text_from_ending(client: Any) -> None:
    asked: dict[str, Any] = {"model": "toy", "prompt": "Hi", "max_tokens": 60, "seed": 2, "stop": ["e"]}
    assert client.completions.create(**asked).usage.completion_tokens < 40
    for least in (40, -1):
        answer = client.completions.create(**asked, min_tokens=least)
        assert answer.usage.completion_tokens >= (least if least > 0 else 60)
    assert answer.choices[0].finish_reason == "length"


def test_a_bias_of_100_forces_a_token_and_one_of_minus_100_bans_it(client: Any) -> None:
    asked: dict[str, Any] = {"model": "toy", "prompt": "Hi", "max_tokens": 20, "seed": 2}
    assert client.completions.create(**asked, logit_bias={"65": 100}).choices[0].text == "A" * 20
    free, banned = (client.completions.create(**asked, n=4, logit_bias=bias).choices for bias in ({}, {"101": -100}))
    assert any("e" in choice.text for choice in free)
    assert not any("e" in choice.text for choice in banned)
    with pytest.raises(sdk.BadRequestError, match="logit_bias"):
        client.completions.create(**asked, logit_bias={"257": 1})


def test_the_best_of_several_is_one_of_them(client: Any) -> None:
    asked: dict[str, Any] = {"model": "toy", "prompt": "Hi", "max_tokens": 12, "seed": 3, "logprobs": 0}
    candidates = client.completions.create(**asked, n=5).choices
    means = {choice.text: sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs) for choice in candidates}
    best = client.completions.create(**asked, best_of=5).choices
    assert [choice.text for choice in best] == [max(means, key=means.__getitem__)]


def test_echo(client: Any, base: str) -> None:
    assert client.completions.create(model="toy", prompt="Hi ", max_tokens=2, echo=True).choices[0].text.startswith("Hi ")
    with sdk.Cerebras(base_url=base, api_key=KEY, max_retries=0) as lenient:  # a strict one takes no null for the first log-probability
        lists = lenient.completions.create(model="toy", prompt="Hi", max_tokens=0, echo=True, logprobs=1).choices[0].logprobs
    assert lists.tokens == ["H", "i"]
    assert lists.text_offset == [0, 1]
    assert lists.token_logprobs[0] is None


@pytest.mark.parametrize(
    ("fields", "error", "param", "code"),
    [
        ({"temperature": 1.6}, "BadRequestError", "temperature", "wrong_api_format"),
        ({"logprobs": 21}, "BadRequestError", "logprobs", "wrong_api_format"),
        ({"suffix": "x"}, "BadRequestError", "suffix", "wrong_api_format"),
        ({"max_tokens": 5_000_000}, "BadRequestError", "max_tokens", "context_length_exceeded"),
        ({"model": "llama9.1-8b"}, "NotFoundError", "model", "model_not_found"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_names_its_field(client: Any, stream: bool, fields: dict[str, Any], error: str, param: str, code: str) -> None:
    with pytest.raises(getattr(sdk, error)) as caught:
        client.completions.create(**{**PAGE, **fields}, stream=stream)
    assert (caught.value.body["param"], caught.value.body["code"]) == (param, code)
    assert caught.value.status_code == (404 if error == "NotFoundError" else 400)


def test_a_wrong_key_is_an_authentication_error_in_the_words_of_the_service(base: str) -> None:
    with sdk.Cerebras(base_url=base, api_key="wrong", max_retries=0) as stranger, pytest.raises(sdk.AuthenticationError) as caught:
        stranger.completions.create(**PAGE)
    told = [caught.value.body[name] for name in ("type", "param", "code")]
    assert told == ["invalid_request_error", "api_key", "wrong_api_key"]


def test_models_are_listed_and_retrieved_though_a_name_holds_a_slash(client: Any) -> None:
    assert [model.id for model in client.models.list().data] == list(NAMES)
    assert client.models.retrieve("org/toy").id == "org/toy"


@pytest.mark.fault("E05")
def test_a_stream_that_breaks_raises_the_class_of_its_status_after_the_text_that_came() -> None:
    seen: list[str] = []
    with (
        serving(lambda: create_app(ScriptedBackend(break_after=2), ServerConfig())) as port,
        sdk.Cerebras(base_url=f"http://127.0.0.1:{port}/cerebras", **STRICT) as made,
    ):
        stream = made.completions.create(model="scripted", prompt="a", stream=True)
        with pytest.raises(sdk.InternalServerError, match="The engine failed"):
            seen.extend(chunk.choices[0].text for chunk in stream)
    assert seen == [" the", " cat"]
