"""LoRA adapters on the real vLLM: by name, equal to vLLM's own, loaded and unloaded under way, and there again after a death."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from tests.support.adapters import write_adapter
from tests.vllm.models import folder
from tests.vllm.own import by_itself
from tests.vllm.serving import START_S, serving
from tests.vllm.test_kills import core_of

PROMPT, TOKENS = "Once upon a time there was", 12
MODULES = {
    f"model.layers.{layer}.self_attn.{name}": shape for layer in (0, 1) for name, shape in (("q_proj", (64, 64)), ("v_proj", (32, 64)))
}
ADMIN = {"authorization": "Bearer admin"}


class Served(NamedTuple):
    """A server of the tiny llama with one adapter and room for another."""

    url: str
    pid: int
    adapters: Path

    def complete(self, model: str, **fields: Any) -> dict[str, Any]:
        body = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "logprobs": 0, **fields}
        answer = httpx2.post(f"{self.url}/completions", json=body, timeout=300)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def text(self, model: str) -> str:
        return str(self.complete(model)["choices"][0]["text"])

    def order(self, what: str, **body: str) -> httpx2.Response:
        return httpx2.post(f"{self.url}/{what}_lora_adapter", json=body, headers=ADMIN, timeout=300)

    def models(self) -> list[str]:
        return [one["id"] for one in httpx2.get(f"{self.url}/models", timeout=60).json()["data"]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    adapters = tmp_path_factory.mktemp("adapters")
    for name, seed in (("one", 1), ("two", 2)):
        write_adapter(adapters / name, MODULES, seed=seed)
    write_adapter(adapters / "stranger", {"model.layers.0.self_attn.q_proj": (48, 48)})
    write_adapter(adapters / "deeper", {"model.layers.99.self_attn.q_proj": (64, 64)})
    write_adapter(adapters / "unknown", {**MODULES, "model.layers.0.nothing.of_this_name": (48, 48)})
    options = "--lora", f"one=llama:{adapters / 'one'}", "--max-loras", "2", "--admin-key", "admin"
    with serving("llama", *options) as (url, pid):
        yield Served(url, pid, adapters)


def test_an_adapters_texts_are_vllms_own_with_it_and_not_the_models(served: Served) -> None:
    ids = httpx2.post(f"{served.url}/tokenize", json={"model": "one", "prompt": PROMPT}, timeout=60).json()["tokens"]
    own = by_itself(folder("llama"), [ids], TOKENS, served.adapters / "one")
    text = httpx2.post(f"{served.url}/detokenize", json={"tokens": own["texts"][0]}, timeout=60).json()["prompt"]
    assert served.text("one") == text != served.text("llama")
    echoed = served.complete("one", echo=True, max_tokens=0)["choices"][0]["logprobs"]["token_logprobs"]
    assert echoed[1:] == pytest.approx(own["scores"][0], abs=1e-3)


def test_adapters_come_and_go_while_it_serves(served: Served) -> None:
    assert served.models() == ["llama", "one"]
    one, base = served.text("one"), served.text("llama")
    loaded = served.order("load", lora_name="two", lora_path=str(served.adapters / "two"))
    assert loaded.status_code == 200, loaded.text
    assert served.models() == ["llama", "one", "two"]
    assert len({served.text("two"), one, base}) == 3
    full = served.order("load", lora_name="three", lora_path=str(served.adapters / "two"))
    assert full.status_code == 400
    assert "--max-loras" in full.text
    long: list[dict[str, Any]] = []
    running = threading.Thread(target=lambda: long.append(served.complete("two", max_tokens=300)))
    running.start()
    time.sleep(0.3)
    assert served.order("unload", lora_name="two").status_code == 200
    assert served.models() == ["llama", "one"]
    assert httpx2.post(f"{served.url}/completions", json={"model": "two", "prompt": "x"}, timeout=60).status_code == 404
    running.join()
    assert long[0]["usage"]["completion_tokens"] == 300, "what ran with it went on to its end"
    assert (served.text("one"), served.text("llama")) == (one, base)


def test_one_that_is_not_the_models_is_refused_and_ends_nothing(served: Served) -> None:
    before = core_of(served.pid)
    for name in ("stranger", "deeper"):
        refused = served.order("load", lora_name=name, lora_path=str(served.adapters / name))
        assert refused.status_code == 400
        assert "'lora_path' cannot be loaded: adapter_model.safetensors: tensor" in refused.text
    refused = served.order("load", lora_name="unknown", lora_path=str(served.adapters / "unknown"))
    assert refused.status_code == 400
    assert "'lora_path' cannot be loaded: The engine cannot load this LoRA adapter" in refused.text
    assert served.models() == ["llama", "one"]
    served.text("one")
    assert core_of(served.pid) == before


def back(served: Served) -> None:
    """Wait until the engine is there again."""
    body = {"model": "one", "prompt": PROMPT, "max_tokens": 1}
    deadline = time.monotonic() + START_S
    while httpx2.post(f"{served.url}/completions", json=body, timeout=START_S).status_code != 200 and time.monotonic() < deadline:
        time.sleep(0.5)


def test_adapters_are_there_again_after_the_engines_death(served: Served) -> None:
    text = served.text("one")
    os.kill(core_of(served.pid)[-1], signal.SIGKILL)
    back(served)
    assert served.text("one") == text


def test_one_whose_files_were_replaced_is_not_computed_under_its_old_name(served: Served) -> None:
    """What is cached of its prompts, and the fingerprint, are the old files'."""
    path = write_adapter(served.adapters / "three", MODULES, seed=3)
    assert served.order("load", lora_name="three", lora_path=str(path)).status_code == 200
    text, print_ = served.text("three"), served.complete("three")["system_fingerprint"]
    shutil.rmtree(path)
    write_adapter(path, MODULES, seed=4)
    os.kill(core_of(served.pid)[-1], signal.SIGKILL)
    back(served)
    refused = httpx2.post(f"{served.url}/completions", json={"model": "three", "prompt": PROMPT, "max_tokens": 1}, timeout=START_S)
    assert "have changed" in refused.text
    assert refused.status_code == 500
    served.order("unload", lora_name="three")
    assert served.order("load", lora_name="three", lora_path=str(path)).status_code == 200
    assert served.text("three") != text
    assert served.complete("three")["system_fingerprint"] != print_
