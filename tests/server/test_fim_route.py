"""Mistral's ``/fim/completions``: shapes, options, errors, streams."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.server.test_infill_route import ask
from tests.server.test_other_routes import frames

from quintet.dialects.fields import table
from quintet.dialects.fim.dialect import FIELDS

DOCS = Path(__file__).parents[2] / "docs" / "completion.md"
FIM: dict[str, Any] = {"prompt": "def f(", "suffix": "return", "max_tokens": 8, "temperature": 0}


def test_fim_is_answered_as_mistral_answers_and_fills_as_suffix_does() -> None:
    (answer,) = ask(FIM, path="/v1/fim/completions")
    (known,) = ask(FIM, path="/v1/completions")
    body = answer.json()
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": known.json()["choices"][0]["text"], "tool_calls": None}
    assert (body["object"], choice["finish_reason"], set(body["usage"])) == (
        *("chat.completion", "length"),
        {"prompt_tokens", "completion_tokens", "total_tokens"},
    )


def test_a_fim_answer_that_fills_the_context_says_so() -> None:
    full = {"prompt": "x" * 4080, "suffix": "y", "temperature": 0}
    whole, stream, bounded = ask(full, {**full, "stream": True}, {**full, "max_tokens": 2}, path="/v1/fim/completions")
    assert whole.json()["usage"]["total_tokens"] == 4096
    ends = [whole.json(), frames(stream)[-1], bounded.json()]
    assert [end["choices"][0]["finish_reason"] for end in ends] == ["model_length", "model_length", "length"]


def test_a_fim_stream_joins_to_the_answer_and_ends_with_done() -> None:
    """As Continue reads it: ``choices[0].delta.content`` of each chunk."""
    answer, stream = ask(FIM, {**FIM, "stream": True}, path="/v1/fim/completions")
    chunks = frames(stream)
    assert stream.body.endswith(b"data: [DONE]\n\n")
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == answer.json()["choices"][0]["message"]["content"]
    assert (chunks[-1]["choices"][0]["finish_reason"], chunks[-1]["usage"]) == ("length", answer.json()["usage"])
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_a_fim_request_with_the_same_seed_gets_the_same_text_and_a_wrong_one_is_refused_as_mistral_does() -> None:
    seeded = {**FIM, "temperature": 1.0, "random_seed": 5}
    first, again, other = ask(seeded, seeded, {**seeded, "random_seed": 6}, path="/v1/fim/completions")
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]
    wrong, missing = ask({**FIM, "temperature": 2}, {"suffix": "a"}, path="/fim/completions")
    assert (wrong.status, wrong.json()["object"], wrong.json()["param"]) == (400, "error", "temperature")
    assert (missing.status, missing.json()["param"]) == (400, "prompt")


def test_fields_of_others_that_ask_for_nothing_are_taken_without_a_word() -> None:
    given = {**FIM, "skip_special_tokens": True, "custom_logit_processor": None, "repetition_detection": {}}
    for strict in (False, True):
        (answer,) = ask(given, path="/v1/fim/completions", strict=strict)
        assert (answer.status, answer.header("warning")) == (200, None), answer.body


def test_the_table_in_the_docs_is_what_is_enforced() -> None:
    found = re.search(r"<!-- fim -->\n(.*)<!-- /fim -->", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None and found[1].strip() == table(FIELDS).strip()
