"""A pytest plugin for the environment in which other servers' tests run: stands in for what starts their server, and for their package.

vLLM's tests import its ``RemoteOpenAIServer`` and its tokenizers, SGLang's its launcher and its tokenizers; here the server is the one that
runs already, and the tokenizers ask it.
llama.cpp's have a switch for a server that runs already; they only need ``wget`` to be there.
"""

from __future__ import annotations

import os
import sys
import unittest
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import openai
import pytest
import requests

URL = os.environ["QUINTET_URL"]
SERVED = "meta-llama/Llama-3.2-1B-Instruct"
"""What the server that SGLang's tests ask is told to serve."""


@pytest.fixture(scope="module")
def qwen3_lora_files() -> str:
    """Of vLLM's tests/conftest.py: the adapters' folder, which no test here looks into."""
    return ""


class RemoteOpenAIServer:
    """As in vLLM's tests/utils.py."""

    url_root = URL

    def __init__(self, *_args: object, **_more: object) -> None:
        pass

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def url_for(self, *parts: str) -> str:
        return "/".join((self.url_root, *parts))

    def get_client(self, **more: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url_for("v1"), api_key="none", max_retries=0, **more)

    def get_async_client(self, **more: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key="none", max_retries=0, **more)


class Tokenizer:
    """The served model's, whichever is asked for."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        answer = requests.post(f"{URL}/tokenize", json={"prompt": text, "add_special_tokens": add_special_tokens}, timeout=60)
        found: list[int] = answer.json()["tokens"]
        return found

    def decode(self, tokens: list[int], **_more: object) -> str:
        return str(requests.post(f"{URL}/detokenize", json={"tokens": tokens}, timeout=60).json()["prompt"])

    def convert_ids_to_tokens(self, tokens: list[int]) -> list[str]:
        return [self.decode([token]).replace(" ", "\u0120").replace("\n", "\u010a") for token in tokens]

    def __call__(self, text: str) -> Any:
        made = ModuleType("encoding")
        made.__dict__["input_ids"] = self.encode(text)
        return made


class _Theirs:
    def __init__(self, *_args: object, **_more: object) -> NoReturn:
        raise NotImplementedError("a class of vLLM's own")


def _module(name: str, **members: object) -> None:
    made = ModuleType(name)
    made.__dict__.update(members)
    made.__path__ = []
    sys.modules[name] = made


PEER = os.environ["QUINTET_PEER"]
if PEER == "vllm":
    for package in ("vllm", "vllm.entrypoints", "vllm.entrypoints.openai", "vllm.entrypoints.openai.completion"):
        _module(package)
    _module("vllm.entrypoints.openai.completion.protocol", CompletionRequest=_Theirs)
    _module("vllm.sampling_params", SamplingParams=_Theirs)
    _module("vllm.tokenizers", get_tokenizer=lambda *_args, **_more: Tokenizer())
    for package in ("vllm.v1", "vllm.v1.engine", "vllm.renderers", "pybase64"):
        _module(package)
    _module("vllm.config", ModelConfig=_Theirs)
    _module("vllm.envs", VLLM_USE_RUST_FRONTEND=False)
    _module("vllm.exceptions", VLLMValidationError=RuntimeError)
    _module("vllm.renderers.embed_utils", safe_load_prompt_embeds=_Theirs)
    _module("vllm.v1.engine.exceptions", EngineDeadError=RuntimeError)
    _module("vllm.version", __version__="0.33.0")
    _module("fastapi", Request=_Theirs)
    _module(
        "torch",
        dtype=object,
        layout=object,
        **dict.fromkeys(("float32", "bfloat16", "float16", "strided", "sparse_coo", "sparse_csc", "sparse_csr"), "of torch"),
    )
    _module("tests.utils", RemoteOpenAIServer=RemoteOpenAIServer)
elif PEER == "sglang":
    for package in ("sglang", "sglang.srt", "sglang.test"):
        _module(package)
    _module("sglang.srt.hf_transformers_utils", get_tokenizer=lambda *_args, **_more: Tokenizer())
    _module("sglang.srt.utils", kill_process_tree=lambda *_args: None)
    _module("sglang.test.runners", TEST_RERANK_QUERY_DOCS=[{"query": "", "documents": []}] * 2)
    _module(
        "sglang.test.test_utils",
        CustomTestCase=unittest.TestCase,
        DEFAULT_MODEL_NAME_FOR_TEST=SERVED,
        DEFAULT_SMALL_CROSS_ENCODER_MODEL_NAME_FOR_TEST=SERVED,
        DEFAULT_SMALL_MODEL_NAME_FOR_TEST=SERVED,
        DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH=0,
        DEFAULT_URL_FOR_TEST=URL,
        popen_launch_server=lambda *_args, **_more: SimpleNamespace(pid=0),
    )
else:
    _module("wget")
