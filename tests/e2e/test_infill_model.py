"""``/infill`` on a real model that fills in the middle, beside what llama-server answered to the same requests."""

from __future__ import annotations

import json
import os
import urllib.request

import pytest
from tests.e2e.test_serve_command import Served, served

PREFIX = 'def add(a, b):\n    """Sum of two numbers."""\n'
SUFFIX = "\n\n\ndef main():\n    print(add(1, 2))\n"
EXTRA = [{"text": "def mul(a, b):\n    return a * b\n", "time": [1, 2], "filename": "mul.py"}]
BODY = {
    **{"input_prefix": PREFIX, "input_suffix": SUFFIX, "input_extra": EXTRA, "prompt": "    return", "n_predict": 32, "n_indent": 4},
    **{"samplers": ["top_k", "top_p", "infill"], "top_k": 40, "top_p": 0.9, "seed": 1},
}
RECORDED: dict[str, tuple[dict[str, object], str, int, str]] = {
    "as the plug-in sends it": ({}, " a + b\n", 54, "limit"),
    "no other files": ({"input_extra": []}, " a + b\n", 38, "limit"),
    "a stop string": ({"stop": ["+"]}, " a ", 54, "word"),
    "long": ({"input_prefix": "x = 1\n" * 700 + PREFIX, "input_suffix": SUFFIX + "y = 2\n" * 300}, " a + b\n", 2072, "limit"),
}
"""What is changed; ``content``, ``tokens_evaluated``, ``stop_type`` of llama-server (August 2026, qwen2.5-coder-0.5b-instruct, Q4_K_M)."""


@pytest.fixture(scope="module")
def path() -> str:
    if not (path := os.environ.get("QUINTET_TEST_FIM_MODEL")):
        pytest.skip("QUINTET_TEST_FIM_MODEL names no file (we use Qwen2.5-Coder 0.5B Instruct, Q4_K_M)")
    return path


def ask(server: Served, body: object) -> dict[str, object]:
    request = urllib.request.Request(f"{server.url}/infill", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        read = json.load(reply)
    assert isinstance(read, dict)
    return read


def test_prompts_texts_and_ends_are_those_that_llama_server_recorded(path: str) -> None:
    with served(path) as server:
        for name, (change, content, tokens, stop) in RECORDED.items():
            answer = ask(server, {**BODY, **change})
            assert (answer["content"], answer["tokens_evaluated"], answer["stop_type"]) == (content, tokens, stop), name


def test_with_the_suffix_first_the_same_tokens_are_in_another_order(path: str) -> None:
    with served(path, "--spm-infill") as server:
        answer = ask(server, BODY)
    assert answer["tokens_evaluated"] == RECORDED["as the plug-in sends it"][2]
    assert isinstance(answer["content"], str)
