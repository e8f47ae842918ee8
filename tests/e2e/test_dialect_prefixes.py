"""Requests as the SDKs and tools send them, byte for byte, over HTTP: a part of ``make test-clients`` that needs nothing installed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from tests.server.live import serving
from tests.server.one import create_app

from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import toy_loader
from quintet.config import EngineConfig, ServerConfig
from quintet.dialects.catalog import PROVIDERS

NAMES = ("toy", "accounts/fireworks/models/toy")
SDK = {"accept": "application/json", "content-type": "application/json", "authorization": "Bearer local", "x-stainless-retry-count": "0"}
AGENTS = {
    "openai": "OpenAI/Python 3.52.0",
    "fireworks": "AsyncFireworks/Python 1.2.28",
    "together": "Together/Python 3.1.1",
    "cerebras": "AsyncCerebras/Python 1.91.0",
    "novita": "OpenAI/Python 3.52.0",
}
PATHS = {
    "openai": "/openai/v1/completions",
    "fireworks": "/fireworks/inference/v1/completions",
    "together": "/together/v1/completions",
    "cerebras": "/cerebras/v1/completions",
    "novita": "/novita/openai/v1/completions",
}

# What the SDKs' types require of JSON answers and chunks, and of the choices in them.
_OPENAI = ({"id", "object", "created", "model", "choices"}, {"text", "index", "logprobs", "finish_reason"})
ANSWER: dict[str, tuple[set[str], set[str]]] = {
    "openai": _OPENAI,
    "novita": (_OPENAI[0] | {"usage"}, _OPENAI[1]),
    "fireworks": (_OPENAI[0] | {"usage"}, _OPENAI[1]),
    "together": ({"id", "object", "created", "model", "choices", "prompt", "usage"}, {"text", "index", "finish_reason", "seed"}),
    "cerebras": (_OPENAI[0] | {"system_fingerprint", "usage", "time_info"}, {"text", "index", "finish_reason"}),
}
CHUNK: dict[str, tuple[set[str], set[str]]] = {
    "openai": _OPENAI,
    "novita": _OPENAI,
    "fireworks": _OPENAI,
    "together": ({"id", "object", "created", "token", "choices", "finish_reason", "usage"}, {"text", "index", "delta"}),
    "cerebras": (_OPENAI[0] | {"system_fingerprint"}, {"text", "index"}),
}
OBJECTS = dict.fromkeys(PROVIDERS, ("text_completion", "text_completion")) | {"together": ("text.completion", "completion.chunk")}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    config = ServerConfig()
    with (
        serving(lambda: create_app(Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22)), config, NAMES)) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        end = time.monotonic() + 60
        while client.get("/health").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.01)
        yield client


def post(http: httpx2.Client, path: str, body: object, **headers: str) -> httpx2.Response:
    """The body as compact JSON, as the SDKs send it."""
    sent = {**SDK, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return http.post(path, content=json.dumps(body, separators=(",", ":")).encode(), headers=sent)


def chunks_of(answer: httpx2.Response) -> list[dict[str, Any]]:
    """The stream's chunks, if it consists of unnamed ASCII frames and comments only, and ends with ``[DONE]``."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    *frames, end = answer.content.decode("ascii").split("\n\n")
    assert (frames.pop(), end) == ("data: [DONE]", "")
    data = [frame for frame in frames if not frame.startswith(":")]
    assert all(frame.startswith("data: {") and "\n" not in frame for frame in data)
    return [json.loads(frame.removeprefix("data: ")) for frame in data]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_sdks_call_gets_everything_its_types_require(http: httpx2.Client, provider: str) -> None:
    asked = {"model": "toy", "prompt": "Once upon", "max_tokens": 12, "seed": 3, "user": None, "logprobs": None, "stop": None}
    whole = post(http, PATHS[provider], asked, user_agent=AGENTS[provider])
    stream = post(http, PATHS[provider], {**asked, "stream": True}, user_agent=AGENTS[provider])
    assert (whole.status_code, stream.status_code) == (200, 200)
    assert whole.headers["x-completions-dialect"] == stream.headers["x-completions-dialect"] == provider
    body, chunks = whole.json(), chunks_of(stream)
    assert ANSWER[provider][0] <= body.keys()
    assert ANSWER[provider][1] <= body["choices"][0].keys()
    assert all(CHUNK[provider][0] <= chunk.keys() for chunk in chunks)
    assert all(CHUNK[provider][1] <= choice.keys() for chunk in chunks for choice in chunk["choices"])
    assert (body["object"], *{chunk["object"] for chunk in chunks}) == OBJECTS[provider]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == body["choices"][0]["text"]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream", "*/*", "application/x-ndjson"])
def test_accept_never_decides_the_form(http: httpx2.Client, provider: str, accept: str) -> None:
    asked = {"model": "toy", "prompt": "a", "max_tokens": 1}
    assert post(http, PATHS[provider], {**asked, "stream": True}, accept=accept).headers["content-type"].startswith("text/event-stream")
    assert post(http, PATHS[provider], asked, accept=accept).headers["content-type"] == "application/json"


def test_langchain_gets_its_choices_in_the_order_of_its_prompts(http: httpx2.Client) -> None:
    asked: dict[str, Any] = {
        "model": "toy", "prompt": ["cat was", "dog was"], "frequency_penalty": 0, "logprobs": None, "max_tokens": 12, "n": 2,
        "presence_penalty": 0, "seed": None, "temperature": 0.0, "top_p": 1,
    }  # fmt: skip
    choices = post(http, "/v1/completions", asked).json()["choices"]
    alone = [
        post(http, "/v1/completions", {**asked, "prompt": [prompt], "n": 1}).json()["choices"][0]["text"] for prompt in asked["prompt"]
    ]
    assert [choice["text"] for choice in choices] == [alone[0], alone[0], alone[1], alone[1]]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]


def test_the_llm_command_gets_no_delta_and_its_usage(http: httpx2.Client) -> None:
    asked = {"model": "toy", "prompt": "a", "stream": True, "max_tokens": 5, "stream_options": {"include_usage": True}}
    *chunks, last = chunks_of(post(http, "/v1/completions", asked))
    assert not any("delta" in choice for chunk in chunks for choice in chunk["choices"])
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 1


@pytest.mark.parametrize("path", ["/v1/completions", PATHS["openai"], PATHS["fireworks"], PATHS["cerebras"]])
def test_lm_eval_slices_what_it_gets(http: httpx2.Client, path: str) -> None:
    """The slice [context:-1], non-empty maps in it, and greedy told by equal floats; whatever the generated token is."""
    documents = [(list(b"The cat"), list(b" sat")), (list(b"The cat"), list(b" on a mat")), (list(b"Is it"), [256])]
    asked = {
        "model": "toy", "prompt": [context + ending for context, ending in documents], "temperature": 0, "max_tokens": 1, "logprobs": 1,
        "seed": 1234, "echo": True,
    }  # fmt: skip
    answer = http.post(path, json=asked)
    for (context, ending), choice in zip(documents, sorted(answer.json()["choices"], key=lambda one: one["index"]), strict=True):
        lists = choice["logprobs"]
        assert len(lists["token_logprobs"]) == len(lists["top_logprobs"]) == len(context) + len(ending) + 1
        logprobs, tops = lists["token_logprobs"][len(context) : -1], lists["top_logprobs"][len(context) : -1]
        assert len(logprobs) == len(ending)
        assert all(top and max(top.values()) >= logprob for logprob, top in zip(logprobs, tops, strict=True))
    (alone,) = http.post(path, json={**asked, "prompt": [documents[1][0] + documents[1][1]]}).json()["choices"]
    assert alone["logprobs"]["token_logprobs"] == answer.json()["choices"][1]["logprobs"]["token_logprobs"]


@pytest.mark.parametrize("stop", [[], ["\n\n", "Q:", "</s>", "<|im_end|>", "###"]])
def test_lm_eval_generates_with_any_number_of_stops(http: httpx2.Client, stop: list[str]) -> None:
    asked = {"prompt": [list(b"Q: a"), list(b"Q: bc")], "model": "toy", "max_tokens": 16, "temperature": 0, "stop": stop, "seed": 1234}
    answer = http.post("/v1/completions", json=asked)
    assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1]


def test_lm_evals_remote_tokenizer_is_beside_every_prefix(http: httpx2.Client) -> None:
    for path in ("/v1/completions", *PATHS.values()):
        base = path.replace("/v1/completions", "")
        assert "eos_token" in http.get(f"{base}/tokenizer_info").json()
        ids = http.post(f"{base}/tokenize", json={"prompt": "Hi", "add_special_tokens": False}).json()["tokens"]
        assert ids == [72, 105]
        assert http.post(f"{base}/detokenize", json={"tokens": ids}).json()["prompt"] == "Hi"


def test_lm_evals_gguf_model_names_no_model(http: httpx2.Client) -> None:
    asked = {"prompt": "The cat sat", "logprobs": 5, "temperature": 0.0, "max_tokens": 1, "echo": True}
    lists = http.post("/v1/completions", json=asked).json()["choices"][0]["logprobs"]
    at = lists["text_offset"].index(len("The cat"))
    assert "".join(lists["tokens"][at:-1]) == " sat"
    assert all(lists["top_logprobs"][at:-1])


def test_helms_best_of_equal_to_n(http: httpx2.Client) -> None:
    asked = {
        "model": "toy", "prompt": "a", "temperature": 0.7, "n": 3, "max_tokens": 5, "best_of": 3, "logprobs": 3, "stop": None,
        "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "echo": False,
    }  # fmt: skip
    choices = http.post("/v1/completions", json=asked).json()["choices"]
    assert len(choices) == 3
    assert all(choice["logprobs"] for choice in choices)


def test_continues_stops_and_headers(http: httpx2.Client) -> None:
    stops = ["<|fim_prefix|>", "<|fim_suffix|>", "<|endoftext|>", "/src/", "#- coding", "```", "\n\n"]
    asked = {"model": "toy", "prompt": "def f(", "max_tokens": 9, "temperature": 0.01, "stream": True, "stop": stops}
    chunks = chunks_of(post(http, "/v1/completions", asked, api_key="local", x_api_key="local"))
    assert all(isinstance(chunk["choices"][0]["text"], str) for chunk in chunks)
    assert all(chunk.get("finish_reason") != "eos" for chunk in chunks)


@pytest.mark.parametrize("provider", ["openai", "fireworks", "cerebras", "novita"])
def test_vercels_schema(http: httpx2.Client, provider: str) -> None:
    asked = {"model": "toy", "prompt": "Once\n\nassistant:\n", "max_tokens": 9, "seed": 3, "stop": ["\nuser:"]}
    body = http.post(PATHS[provider], json=asked).json()
    (choice,) = body["choices"]
    assert (type(choice["text"]), type(choice["finish_reason"])) == (str, str)
    assert {type(body["usage"][name]) for name in ("prompt_tokens", "completion_tokens", "total_tokens")} == {int}
    chunks = chunks_of(http.post(PATHS[provider], json={**asked, "stream": True, "stream_options": {"include_usage": True}}))
    assert all(type(choice["index"]) is int and type(choice["text"]) is str for chunk in chunks for choice in chunk["choices"])


def test_together_1_gets_numbers_for_log_probabilities_in_chunks(http: httpx2.Client) -> None:
    asked = {"model": "toy", "prompt": "a", "max_tokens": 5, "stream": True, "logprobs": 1}
    values = [choice["logprobs"] for chunk in chunks_of(post(http, PATHS["together"], asked)) for choice in chunk["choices"]]
    assert {type(value) for value in values} <= {float, type(None)}
    assert any(isinstance(value, float) for value in values)


@pytest.mark.parametrize("fields", [{"logprobs": 2}, {"logprobs": True, "top_logprobs": 2}])
def test_fireworks_0_finds_no_null_and_no_field_that_it_does_not_know(http: httpx2.Client, fields: dict[str, Any]) -> None:
    asked = {"model": NAMES[1], "prompt": "Hi", "max_tokens": 3, "echo": True, **fields}
    body = post(http, PATHS["fireworks"], asked).json()
    assert body.keys() <= {"id", "object", "created", "model", "choices", "usage", "perf_metrics"}
    assert body["usage"].keys() <= {"prompt_tokens", "completion_tokens", "total_tokens"}
    (choice,) = body["choices"]
    assert choice.keys() == {"index", "text", "logprobs", "finish_reason"}
    assert None not in choice["logprobs"].get("token_logprobs", [])
    assert all(entry["logprob"] is not None for entry in choice["logprobs"].get("content", []))


def test_cerebras_constructor_is_answered(http: httpx2.Client) -> None:
    assert http.get("/cerebras/v1/tcp_warming", headers=SDK).status_code == 200


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_error_is_where_the_clients_look_for_it(http: httpx2.Client, provider: str) -> None:
    refused = post(http, PATHS[provider], {"model": "toy", "prompt": "a", "max_tokens": -1})
    body = refused.json()
    inner = body.get("error", body)
    assert refused.status_code == 400
    assert "'max_tokens'" in inner["message"]
    assert provider == "novita" or isinstance(inner["code"], str)  # Together's SDK 1.x fails on another type
    assert provider != "cerebras" or body["status_code"] == 400  # its SDK believes this rather than the status
