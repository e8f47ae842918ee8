"""Requests that broke a promise once; ``tests/server/test_hostile_bodies.py`` found them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.server.asgi import Answer, acall
from tests.server.documents import completions
from tests.server.toy import toy_app


def ask(dialect: str, body: dict[str, Any]) -> Answer:
    async def go() -> Answer:
        async with toy_app(dialect) as app:
            return await acall(app, body)

    return asyncio.run(go())


def test_max_tokens_of_thousands_of_digits_goes_to_the_end_of_the_context_where_that_is_the_rule() -> None:
    """It was counted as a float, which cannot hold it: a 500."""
    answer = ask("fireworks", {"prompt": "a", "max_tokens": 10**4200, "context_length_exceeded_behavior": "truncate"})
    assert answer.status == 200
    completions("fireworks").answer.validate(answer.json())


@pytest.mark.parametrize("body", [{"thinking": {"type": "enabled", "budget_tokens": 10**4200}}, {"max_completion_tokens": 10**4200}])
def test_an_error_does_not_repeat_a_number_of_thousands_of_digits(body: dict[str, Any]) -> None:
    answer = ask("fireworks", {"prompt": "a", "max_tokens": 1, **body})
    assert answer.status == 400
    assert len(answer.body) < 400
    completions("fireworks").errors[400].validate(answer.json())


@pytest.mark.parametrize("field", ["response_format", "thinking"])
def test_an_object_without_its_required_type_is_refused(field: str) -> None:
    """It counted as left out."""
    assert ask("fireworks", {"prompt": "a", "max_tokens": 1, field: {}}).status == 400
