"""``quintet serve`` with a second model that judges the first: a guard whose weights find one letter, each engine in its process."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_serve_command import Served, served
from tests.e2e.test_several_models import engines
from tests.reference.wired_guard import BAD, FORM, write_guard

from quintet.service.moderated import CHUNK_TOKENS, FIRST_TOKENS

SEEDS = range(12)
PATH = "/together/v1/completions"


def command(folder: Path) -> tuple[str, ...]:
    guard, form = write_guard(folder / "guard.gguf"), folder / "guard.toml"
    form.write_bytes(FORM)
    alias = "Meta-Llama/Llama-Guard-7b=guard"
    return ("toy", f"guard={guard}", "--moderation", f"guard={form}", "--alias", alias, "--kv-cache", "32MiB", "--log-level", "error")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(*command(tmp_path_factory.mktemp("guard"))) as made:
        yield made


def ask(one: Served, seed: int = 1, guard: str | None = "guard", **more: Any) -> tuple[int, Any]:
    body = {"model": "toy", "prompt": "Once", "max_tokens": 150, "seed": seed, "safety_model": guard, **more}
    status, content = one.send(PATH, json.dumps(body).encode(), {"Content-Type": "application/json"})
    if not more.get("stream") or status != 200:
        return status, json.loads(content)
    frames = [frame.removeprefix("data: ") for frame in content.decode().split("\n\n") if frame.startswith("data: ")]
    return status, [json.loads(frame) for frame in frames if frame != "[DONE]"]


def second(one: Served) -> int:
    """The guard's process, once it is there."""
    while len(found := engines(one)) < 2:
        time.sleep(0.01)
    return found[1]


def expected(text: str) -> str:
    """What of a text is shown: it ends before the chunk with the bad letter; a token is a byte here."""
    at = text.find(BAD)
    if at < 0:
        return text
    return text[: 0 if at < FIRST_TOKENS else FIRST_TOKENS + (at - FIRST_TOKENS) // CHUNK_TOKENS * CHUNK_TOKENS]


@pytest.fixture(scope="module")
def plain(one: Served) -> dict[int, str]:
    """What the model says unjudged."""
    texts = {seed: ask(one, seed, guard=None)[1]["choices"][0]["text"] for seed in SEEDS}
    assert {BAD in text for text in texts.values()} == {True, False}, "both kinds are there"
    return texts


def test_what_is_shown_ends_before_the_chunk_with_the_letter_in_json_and_stream(one: Served, plain: dict[int, str]) -> None:
    for seed, text in plain.items():
        _, body = ask(one, seed)
        _, chunks = ask(one, seed, stream=True)
        choice = body["choices"][0]
        assert choice["text"] == "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected(text)
        assert body["usage"] == chunks[-1]["usage"]
        if BAD in text:
            assert choice["finish_reason"] == chunks[-1]["finish_reason"] == "stop"
            assert (
                choice["moderation"] == {"model": "guard", "flagged": True, "categories": ["S2"]} == chunks[-1]["choices"][0]["moderation"]
            )
            assert body["warnings"] == chunks[-1]["warnings"]
            assert "judged unsafe by guard: S2 (Weapons)" in body["warnings"][0]["message"]
        else:
            assert "moderation" not in choice and "warnings" not in body


def test_verdicts_do_not_depend_on_what_else_is_judged(one: Served, plain: dict[int, str]) -> None:
    with concurrent.futures.ThreadPoolExecutor(len(plain)) as pool:
        together = pool.map(lambda seed: ask(one, seed, stream=seed % 2 == 0, n=2 if seed % 3 == 0 else 1)[1], plain)
        for answer, text in zip(together, plain.values(), strict=True):
            parts = [chunk["choices"][0] for chunk in answer] if isinstance(answer, list) else answer["choices"]
            assert "".join(part["text"] for part in parts if part["index"] == 0) == expected(text)


def test_an_unsafe_prompt_is_refused(one: Served) -> None:
    for stream in (False, True):
        status, body = ask(one, prompt=f"a {BAD} b", stream=stream)
        assert (status, body["error"]["code"], body["error"]["param"]) == (400, "content_policy_violation", "prompt")
    assert ask(one, prompt="a b", guard="Meta-Llama/Llama-Guard-7b")[0] == 200
    for name in ("toy", "nobody"):
        status, body = ask(one, guard=name)
        assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "safety_model")


def test_a_judgement_computes_only_what_is_new(one: Served) -> None:
    """All full pages of what came before are in the guard's prefix cache."""

    def counted() -> tuple[int, int]:
        _, content = one.send("/metrics", None, {})
        names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
        found = [re.search(rf'^{name}{{engine="0",model_name="guard"}} (\S+)$', content.decode(), re.MULTILINE) for name in names]
        return int(float(found[0][1])) if found[0] else 0, int(float(found[1][1])) if found[1] else 0

    asked, hit = counted()
    ask(one, prompt="a long prompt that is only judged, again and again, with every part of what is said", logit_bias={str(ord(BAD)): -100})
    asked, hit = (after - before for after, before in zip(counted(), (asked, hit), strict=True))
    judgements = 2 + (150 - FIRST_TOKENS) // CHUNK_TOKENS
    assert asked > judgements * 80
    assert asked - hit < 80 + judgements * (CHUNK_TOKENS + 16 + 2) + 150


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.fault("C13")
def test_nothing_unjudged_is_shown_when_the_guard_is_killed(tmp_path: Path) -> None:
    with served(*command(tmp_path)) as own:
        text = ask(own, 1, guard=None)[1]["choices"][0]["text"]
        statuses = set()
        for _ in range(3):
            os.kill(second(own), signal.SIGKILL)
            status, body = ask(own, 1)
            statuses.add(status)
            assert status in (200, 500, 503)
            assert status != 200 or body["choices"][0]["text"] == expected(text)
        assert statuses != {200} or ask(own, 1)[0] == 200
