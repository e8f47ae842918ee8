"""Whole answers of every dialect, byte for byte, over a scripted backend: ``tests/golden/<dialect>/<case>/``.

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
from quintet.dialects.catalog import PROVIDERS
from quintet.server.app import create_app

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = sorted(f"{path.parent.name}/{path.name}" for name in PROVIDERS for path in (GOLDEN / name).glob("*"))


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
    app = create_app(scripted(case), ServerConfig(dialect=case.parent.name), source=SOURCE)
    got = written(call(app, (case / "request.json").read_bytes().rstrip(b"\n")))
    if os.environ.get("QUINTET_WRITE_GOLDENS"):
        (case / "response.http").write_bytes(got)
    assert got == (case / "response.http").read_bytes()


@pytest.mark.parametrize("dialect", [name for name in PROVIDERS if (GOLDEN / name).is_dir()])
def test_there_are_goldens_of_both_kinds(dialect: str) -> None:
    kinds = [path.read_text().split("\n")[1] for path in (GOLDEN / dialect).glob("*/response.http")]
    assert len(kinds) >= 40
    assert kinds.count("content-type: application/json") >= 25
    assert kinds.count("content-type: text/event-stream; charset=utf-8") >= 8
