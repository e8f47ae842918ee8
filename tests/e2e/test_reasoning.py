"""Reasoning control over HTTP: on the bundled model, with tags that take several tokens, and on a file whose vocabulary has the tags."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.e2e.test_serve_command import served
from tests.reference.tiny_model import TinySpec, write_tiny
from tests.support.bundled import bundled_path

from quintet.errors import shorten

PROMPT = "Question: What is the capital of France?\n<think>"
TEMPLATE_TAGS = "<think>", "</think>"


class Client:
    """Posts to a served model."""

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, dialect: str, **fields: Any) -> httpx2.Response:
        body = {"model": "m", "seed": 5, "temperature": 0.7, "max_tokens": 32, **fields}
        return httpx2.post(f"{self.url}/{dialect}/v1/completions", json=body, timeout=120)

    def choice(self, **fields: Any) -> dict[str, Any]:
        answer = self.post("fireworks", return_token_ids=True, **fields)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["choices"][0]
        return found


@pytest.fixture(scope="module")
def bundled() -> Iterator[Client]:
    with served(str(bundled_path()), "--think-tags", "<think>,</think>", "--ctx-size", "256", "-a", "m") as one:
        yield Client(one.url)


def test_a_budget_cuts_the_thinking_off_and_changes_nothing_before(bundled: Client) -> None:
    free = bundled.choice(prompt=PROMPT)
    assert "</think>" not in free["text"], "it does not know the tags, so only the budget closes a block"
    for budget in (1, 7, 20):
        cut = bundled.choice(prompt=PROMPT, reasoning_effort=budget)
        thought, tag, answer = cut["text"].partition("</think>")
        assert cut["token_ids"][:budget] == free["token_ids"][:budget]
        assert free["text"].startswith(thought) and tag and answer


def test_none_closes_the_block_at_once_and_does_nothing_where_none_is_open(bundled: Client) -> None:
    free = bundled.choice(prompt="The sky is", max_tokens=12)
    for off in ({"reasoning_effort": "none"}, {"reasoning_effort": False}, {"thinking": {"type": "disabled"}}):
        assert bundled.choice(prompt=PROMPT, max_tokens=5, **off)["text"].startswith("</think>")
        assert bundled.choice(prompt="The sky is", max_tokens=12, **off) == free


def test_efforts_that_are_more_than_the_answer_change_nothing(bundled: Client) -> None:
    free = bundled.choice(prompt=PROMPT)
    for effort in ("low", "high", 10**30):
        assert bundled.choice(prompt=PROMPT, reasoning_effort=effort) == free
    for budget in (1024, 2**64, 10**30):
        assert bundled.choice(prompt=PROMPT, thinking={"type": "enabled", "budget_tokens": budget}) == free


def test_usage_counts_the_thinking_in_the_dialects_that_have_a_place_for_it(bundled: Client) -> None:
    for dialect in ("openai", "cerebras"):
        usage = bundled.post(dialect, prompt=PROMPT).json()["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] == usage["completion_tokens"] == 32
        usage = bundled.post(dialect, prompt="Paris.</think> It", max_tokens=8).json()["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] == 0


def test_the_count_in_the_usage_is_the_budget_that_was_held(bundled: Client) -> None:
    for dialect, budget in (("openai", 9), ("cerebras", 0), ("openai", 20)):
        answer = bundled.post(dialect, prompt=PROMPT, thinking_token_budget=budget, n=4).json()
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4 * budget
        assert all("</think>" in choice["text"] for choice in answer["choices"])


def test_a_guide_governs_what_follows_the_block(bundled: Client) -> None:
    shape = {"type": "json_schema", "json_schema": {"enum": ["Paris", "Rome"]}}
    for budget in (0, 6):
        text = bundled.choice(prompt=PROMPT, reasoning_effort=budget, response_format=shape)["text"]
        assert text.partition("</think>")[2] in ('"Paris"', '"Rome"')


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Random weights, and a vocabulary with the tags as control tokens that its template names."""
    path: Path = write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TinySpec("tiny", thinks=True))
    with served(str(path), "--kv-cache", "16MiB", "-a", "m") as one:
        yield Client(one.url)


def test_a_file_that_names_its_tags_needs_no_option(tiny: Client) -> None:
    start, end = (httpx2.post(f"{tiny.url}/v1/tokenize", json={"prompt": tag}).json()["tokens"][0] for tag in TEMPLATE_TAGS)
    free = tiny.choice(prompt="ab<think>", logit_bias={str(end): -100})
    assert end not in free["token_ids"]
    for budget in (0, 1, 13):
        cut = tiny.choice(prompt="ab<think>", reasoning_effort=budget)
        if end not in cut["token_ids"][:budget]:
            assert cut["token_ids"][budget] == end
        assert cut["text"].count("</think>") == cut["token_ids"].count(end), "they show in the text"
    often = tiny.choice(prompt="ab", reasoning_effort="none", logit_bias={str(start): 6})["token_ids"]
    opened = [at for at, token in enumerate(often[:-1]) if token == start]
    assert opened and all(often[at + 1] == end for at in opened)


def test_a_model_that_does_not_reason_takes_none_and_refuses_the_rest_by_the_fields_own_name() -> None:
    with served("--toy") as one:
        client = Client(one.url)
        for off in ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}):
            assert client.post("fireworks", prompt="a", model="toy", **off).status_code == 200
        refused = ("reasoning_effort", "high"), ("reasoning_effort", True), ("reasoning_effort", 5), ("thinking", {"type": "enabled"})
        for name, value in refused:
            answer = client.post("fireworks", prompt="a", model="toy", **{name: value})
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["param"] == name and error["code"] == "unsupported_parameter"
            assert error["message"] == f"'{name}' must ask for no thinking, or be left out: toy does not reason, got {shorten(value)}."
