"""Over HTTP, in every dialect: prompts in a list get the texts that they get alone, and constraints under any server's name are kept."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from tests.server.asgi import Answer, acall
from tests.server.toy import toy_app

from quintet.dialects.catalog import PROVIDERS

PROMPTS = ["Once upon", "There was", "A cat"]
ASKED: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "seed": 7}


def posted(dialect: str, *bodies: dict[str, Any]) -> list[Answer]:
    async def ask() -> list[Answer]:
        async with toy_app(dialect) as app:
            return [await acall(app, json.dumps(body).encode()) for body in bodies]

    return asyncio.run(ask())


def texts(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.body
    return [choice["text"] for choice in sorted(answer.json()["choices"], key=lambda choice: choice["index"])]


@pytest.mark.parametrize("dialect", [name for name in PROVIDERS if name != "together"])  # which takes one prompt
def test_putting_prompts_together_changes_no_text(dialect: str) -> None:
    together, *alone = posted(dialect, {**ASKED, "prompt": PROMPTS, "n": 2}, *({**ASKED, "prompt": one, "n": 2} for one in PROMPTS))
    assert texts(together) == [text for answer in alone for text in texts(answer)]
    assert len(set(texts(together))) == 6


def test_equal_prompts_without_a_seed_get_different_texts() -> None:
    (answer,) = posted("openai", {"max_tokens": 12, "prompt": ["Once upon"] * 4})
    assert len(set(texts(answer))) == 4


@pytest.mark.parametrize("short", ["a", ""])
def test_an_error_names_the_prompt_that_it_is_of_behind_equal_ones(short: str) -> None:
    """All texts of one character that are equal are one object."""
    (answer,) = posted("openai", {"max_tokens": 1, "prompt": [short, short, "x" * 100_000], "n": 2})
    assert (answer.status, answer.json()["error"]["param"]) == (400, "prompt[2]")


KEPT: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object"}}, r"\{"),
    ({"structured_outputs": {"regex": "[0-9]{3}-x"}}, r"[0-9]{3}-x$"),
    ({"guided_choice": ["green", "blue"]}, r"(green|blue)$"),
    ({"ebnf": 'root ::= "left" | "right"'}, r"(left|right)$"),
    ({"guided_json": {"const": 5}}, r"5$"),
]


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_constraints_bind_in_every_dialect(dialect: str) -> None:
    answers = posted(dialect, *({**ASKED, "prompt": "Say: ", **fields} for fields, _ in KEPT))
    for answer, (fields, pattern) in zip(answers, KEPT, strict=True):
        assert answer.header("warning") is None, fields
        assert re.match(pattern, texts(answer)[0]), (fields, texts(answer))
