"""Vercel's AI SDK with its ``openai-compatible`` provider, whose zod schemas are strict about types."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support import PATHS, SCENARIOS, TOY

BASES = {**PATHS, "fireworks": "/fireworks/inference/v1", "together": "/together/v1", "cerebras": "/cerebras/v1"}
PROMPT = "Once upon a time"
ENDS = {"stop", "length", "other", "unknown"}


def ask(*jobs: dict[str, Any]) -> list[dict[str, Any]]:
    """Each job's answer; all jobs in one process, one after the other."""
    script = Path(__file__).with_suffix(".mjs")
    done = subprocess.run(["node", str(script)], input=json.dumps(jobs), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def job(provider: str, stream: bool = False, base: str = TOY, model: str = "toy", **options: Any) -> dict[str, Any]:
    options = {"prompt": PROMPT, "maxOutputTokens": 20, "seed": 3, **options}
    return {"base": base + BASES[provider], "model": model, "stream": stream, "body": options.pop("body", {}), "options": options}


@pytest.mark.parametrize("provider", BASES)
def test_json_and_stream_are_the_same(provider: str) -> None:
    whole, stream = ask(job(provider), job(provider, stream=True))
    assert "error" not in whole, whole
    assert "failures" not in stream, stream
    assert whole["text"]
    assert stream["text"] == whole["text"] == "".join(stream["parts"])
    assert stream["finishReason"] == whole["finishReason"]
    assert whole["finishReason"] in ENDS
    usage = whole["usage"]
    assert usage["totalTokens"] == usage["inputTokens"] + usage["outputTokens"]
    assert {name: stream["usage"][name] for name in ("inputTokens", "outputTokens")} == {
        name: usage[name] for name in ("inputTokens", "outputTokens")
    }


@pytest.mark.parametrize("provider", ["openai", "fireworks", "cerebras"])
def test_its_options_reach_the_server(provider: str) -> None:
    echoed, stopped = ask(job(provider, body={"echo": True}), job(provider, stopSequences=["e"], maxOutputTokens=60, temperature=0.5))
    assert PROMPT in echoed["text"]
    assert "e" not in stopped["text"]
    assert stopped["finishReason"] == "stop"


@pytest.mark.parametrize("provider", BASES)
def test_an_error_has_its_message(provider: str) -> None:
    (refused,) = ask(job(provider, body={"top_p": 7}))
    assert refused["status"] == 400
    assert "top_p" in refused["error"]


@pytest.mark.parametrize("provider", BASES)
def test_a_stream_that_breaks_tells(provider: str) -> None:
    """It takes Fireworks' last frame, which has choices too, for an ordinary chunk; then the body has no end."""
    (broken,) = ask(job(provider, stream=True, base=f"{SCENARIOS}/breaks", model="scripted"))
    assert "".join(broken["parts"]) == " the cat"
    assert broken["failures"]
    assert provider == "fireworks" or any("The engine failed" in failure for failure in broken["failures"])
