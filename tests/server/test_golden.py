"""Whole answers of every dialect, byte for byte, and what holds of all of them. See ``goldens.py``.

``QUINTET_WRITE_GOLDENS=1`` writes the answers anew: read the difference before committing it.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from tests.dialects.fold_clients import folded
from tests.server.goldens import CASES, GOLDEN, TOY, chunks, recorded, replay, sent, slices_right, written

from quintet.conformance import fireworks, novita
from quintet.dialects.catalog import PROVIDERS


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_the_golden_one_byte_for_byte(name: str) -> None:
    got = replay(name)
    path = GOLDEN / name / "response.http"
    if os.environ.get("QUINTET_WRITE_GOLDENS"):
        path.write_bytes(written(got))
    assert path.exists(), "write it with QUINTET_WRITE_GOLDENS=1, and read it"
    assert written(got) == path.read_bytes()
    slices_right(name, got)


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_there_are_goldens_of_all_kinds(dialect: str) -> None:
    cases = [name for name in CASES if name.startswith(f"{dialect}/")]
    assert len(set(TOY) & set(cases)) >= 40
    kinds = [(GOLDEN / name / "response.http").read_text().split("\n")[1] for name in cases]
    assert kinds.count("content-type: application/json") >= 25
    assert kinds.count("content-type: text/event-stream; charset=utf-8") >= 8
    assert sum(slices_right(name, recorded(name)) for name in cases) >= 50 or dialect == "together"  # which has no offsets


@pytest.mark.parametrize(("dialect", "example"), [("fireworks", fireworks.EXAMPLE), ("novita", novita.EXAMPLE)])
def test_the_page_s_example_is_a_golden_with_every_field_that_the_page_gives_it(dialect: str, example: dict[str, Any]) -> None:
    golden = json.loads(sent(f"{dialect}/page_example"))
    assert golden == {"model": "golden", **example}


def answered(name: str) -> bool:
    """With a 200. A case that is new has no answer before it is written."""
    path = GOLDEN / name / "response.http"
    return path.exists() and path.read_bytes().startswith(b"200\n")


def streamable(asked: dict[str, Any]) -> bool:
    """Only without ``best_of``, whose results are known at the end."""
    return (asked.get("best_of") or 0) <= (asked.get("n") or 1)


PAIRS = [name for name in TOY if answered(name) and streamable(json.loads(sent(name)))]


def test_a_new_case_without_an_answer_does_not_keep_the_answers_from_being_written() -> None:
    assert not answered("openai/a_case_that_is_not_there")


@pytest.mark.parametrize("name", PAIRS)
def test_the_json_body_is_what_a_client_makes_of_the_stream(name: str) -> None:
    dialect, asked = name.split("/")[0], json.loads(sent(name))
    asked.pop("stream_options", None)
    options = {"stream_options": {"include_usage": True}} if dialect == "openai" else {}
    body = replay(name, json.dumps({**asked, "stream": False}).encode())
    stream = replay(name, json.dumps({**asked, "stream": True, **options}).encode())
    assert stream.body.endswith(b"\n\ndata: [DONE]\n\n")
    assert folded(dialect, chunks(stream.body), asked.get("logprobs")) == body.json()


def test_most_goldens_have_both_a_body_and_a_stream() -> None:
    assert all(sum(name.startswith(f"{dialect}/") for name in PAIRS) >= 25 for dialect in PROVIDERS)
