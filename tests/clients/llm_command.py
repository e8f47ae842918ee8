"""The ``llm`` command with a completion model of ``extra-openai-models.yaml``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import SCENARIOS, TOY

Run = Callable[..., subprocess.CompletedProcess[str]]

MODELS = """\
- model_id: here
  model_name: toy
  api_base: {toy}/openai/v1
  completion: true
- model_id: broken
  model_name: scripted
  api_base: {scenarios}/breaks/openai/v1
  completion: true
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(toy=TOY, scenarios=SCENARIOS))
    command = str(Path(sys.executable).parent / "llm")

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
        return subprocess.run([command, *arguments], env=env, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)

    return call


def test_streamed_and_whole_are_the_same(run: Run) -> None:
    fields = ("-o", "max_tokens", "20", "-o", "seed", "3")
    streamed, whole = run("-m", "here", *fields, "Once upon"), run("-m", "here", "--no-stream", *fields, "Once upon")
    assert (streamed.returncode, whole.returncode) == (0, 0), streamed.stderr + whole.stderr
    assert streamed.stdout == whole.stdout
    assert len(streamed.stdout) > 10


def test_the_log_holds_usage_and_log_probabilities(run: Run) -> None:
    done = run("-m", "here", "-o", "logprobs", "2", "-o", "max_tokens", "5", "-o", "temperature", "0", "Once upon")
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads(run("logs", "--json").stdout)
    answer = entry["response_json"]
    assert answer["usage"]["prompt_tokens"] == 9
    assert answer["usage"]["completion_tokens"] == 5
    assert [entry["text"] for entry in answer["logprobs"] if entry["text"]] == list(answer["content"])  # the toy's tokens are letters


def test_errors_are_one_line(run: Run) -> None:
    done = run("-m", "here", "-o", "max_tokens", "5000000", "Once upon")
    assert done.returncode == 1
    assert "max_tokens" in done.stderr
    assert "The engine failed" in run("-m", "broken", "a").stderr
