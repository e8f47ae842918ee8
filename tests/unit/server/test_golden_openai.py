"""Whole answers of the OpenAI dialect, byte for byte, over a scripted backend: ``tests/golden/openai/<case>/``.

``request.json`` is sent as it is; ``response.http`` is the status, the headers, an empty line and the body; ``backend.json``, if it is
there, overrides the script. ``QUINTET_WRITE_GOLDENS=1`` writes the responses anew: read the difference before committing it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.server.asgi import SOURCE, Answer, call
from tests.unit.server.scripted import ScriptedBackend

from quintet.backends.base import State
from quintet.config import ServerConfig
from quintet.server.app import create_app

GOLDEN = Path(__file__).parents[2] / "golden" / "openai"
CASES = sorted(path.name for path in GOLDEN.iterdir())


def scripted(case: Path) -> ScriptedBackend:
    script: dict[str, Any] = json.loads((case / "backend.json").read_text()) if (case / "backend.json").exists() else {}
    if "words" in script:
        script["words"] = [bytes(word) if isinstance(word, list) else word.encode() for word in script["words"]]
    if "state" in script:
        script["state"] = State(script["state"])
    return ScriptedBackend(**script)


def written(answer: Answer) -> bytes:
    head = "".join(f"{name}: {value}\n" for name, value in answer.headers)
    return f"{answer.status}\n{head}\n".encode() + answer.body


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_the_golden_one_byte_for_byte(name: str) -> None:
    case = GOLDEN / name
    app = create_app(scripted(case), ServerConfig(), source=SOURCE)
    got = written(call(app, (case / "request.json").read_bytes().rstrip(b"\n")))
    if os.environ.get("QUINTET_WRITE_GOLDENS"):
        (case / "response.http").write_bytes(got)
    assert got == (case / "response.http").read_bytes()


def test_there_are_goldens_of_both_kinds() -> None:
    kinds = [(GOLDEN / name / "response.http").read_text().split("\n")[1] for name in CASES]
    assert len(CASES) >= 25
    assert kinds.count("content-type: application/json") >= 15
    assert kinds.count("content-type: text/event-stream; charset=utf-8") >= 8
