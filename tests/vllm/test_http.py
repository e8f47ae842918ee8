"""``quintet serve --engine vllm`` over HTTP: every item of the five pages, what it lacks by name, and its end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from tests.e2e.test_check import stated
from tests.support.processes import ENVIRONMENT
from tests.vllm.models import folder
from tests.vllm.serving import SERVE, START_S, serving

PAGES = ("openai", "fireworks", "together", "cerebras", "novita")
OTHER_BATCH = {"together": {"choices.seed"}}
"""Items that compare a choice drawn beside another one with the same alone: vLLM's logits may differ then (docs/engines.md), and with
temperature 1 a draw among tens of thousands of tokens does, in some runs. Where logits are equal ``test_numbers`` compares the texts."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of the bundled model over vLLM."""
    with serving("smollm2", "--dialect", "auto") as (url, _):
        yield url


@pytest.mark.parametrize("page", PAGES)
def test_every_item_of_a_providers_page_is_as_it_says(url: str, page: str) -> None:
    """Or differs as docs/conformance.toml says of it, on every engine."""
    base = f"{url.removesuffix('/v1')}/{page}/v1"
    command = [sys.executable, "-m", "quintet", "check", base, "--as", page, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    found = json.loads(done.stdout)
    departures = stated("departures", page) | stated("unserved", page) | OTHER_BATCH.get(page, set())
    differing = [(one["id"], one["seen"]) for one in found["items"] if one["verdict"] == "differs" and one["id"] not in departures]
    assert differing == []
    assert len(found["items"]) > 20


def test_an_unmodified_sdk_streams_with_log_probabilities(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url.removesuffix('/v1')}/openai/v1", api_key="none", _strict_response_validation=False)
    asked: Any = {"model": "smollm2", "prompt": "The sky is", "max_tokens": 8, "temperature": 0, "logprobs": 1}
    whole = client.completions.create(**asked)
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True) if chunk.choices)
    assert streamed == whole.choices[0].text
    assert whole.choices[0].logprobs is not None
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 8


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 1, "logprob_token_ids": [5]}, "logprob_token_ids"),
        ({"max_tokens": 4000}, "max_tokens"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ],
)
def test_what_cannot_be_is_a_400_that_names_the_field(url: str, fields: dict[str, object], param: str) -> None:
    answer = httpx2.post(f"{url}/completions", json={"model": "smollm2", "prompt": "x", **fields}, timeout=60)
    assert answer.status_code == 400
    assert f"'{param}'" in answer.text


def test_images_are_refused_by_name(url: str) -> None:
    body = {"model": "smollm2", "prompt": "<image>What is it?", "images": ["data:image/png;base64,iVBORw0KGgo="]}
    answer = httpx2.post(f"{url.removesuffix('/v1')}/fireworks/inference/v1/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert "images" in answer.text


def test_metrics_have_the_same_names_and_count(url: str) -> None:
    httpx2.post(f"{url}/completions", json={"model": "smollm2", "prompt": "x", "max_tokens": 3, "ignore_eos": True}, timeout=60)
    time.sleep(0.1)
    text = httpx2.get(f"{url.removesuffix('/v1')}/metrics", timeout=60).text
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    values = {name.partition("{")[0]: float(value) for name, _, value in lines}
    assert values["vllm:generation_tokens_total"] >= 3
    assert values["quintet:prefill_tokens_total"] >= 1
    assert values["vllm:num_requests_running"] == 0


def test_an_option_that_vllm_has_nothing_for_is_refused_at_the_start() -> None:
    for option in (("--threads", "2"), ("--quantize", "q4"), ("--speculation", "off")):
        command = [sys.executable, *SERVE, *option, str(folder("llama"))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=ENVIRONMENT)
        assert done.returncode == 1
        assert f"{option[0]} is nothing to the vLLM engine" in done.stderr
