"""docs/contributing/add-an-engine.md, followed: the contract suite runs over this engine too (``BACKENDS``), and here the server does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.backends.contract.conftest import ready
from tests.contributing.bigram import BigramEngine
from tests.server.asgi import SOURCE, Answer, acall
from tests.server.one import create_app

from quintet.config import ServerConfig
from quintet.dialects.catalog import PROVIDERS

ASKED = {"model": "bigram", "prompt": "Once upon", "max_tokens": 12, "seed": 7}


def ask(dialect: str, *bodies: dict[str, Any]) -> list[Answer]:
    """Answers of one server, asked all at once."""

    async def go() -> list[Answer]:
        async with ready(BigramEngine()) as engine:
            app = create_app(engine, ServerConfig(dialect=dialect), ("bigram",), source=SOURCE)
            return await asyncio.gather(*(acall(app, body) for body in bodies))

    return asyncio.run(go())


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_every_dialect_speaks_for_it_and_company_changes_nothing(dialect: str) -> None:
    alone = [answer for body in (ASKED, {**ASKED, "logprobs": 1}) for answer in ask(dialect, body)]
    crowd = ask(dialect, ASKED, {**ASKED, "logprobs": 1}, *({**ASKED, "seed": seed} for seed in range(9)))
    assert [answer.status for answer in crowd] == [200] * len(crowd)
    assert [answer.json()["choices"] for answer in crowd[:2]] == [answer.json()["choices"] for answer in alone]
    assert len({answer.json()["choices"][0]["text"] for answer in crowd[2:]}) > 1


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_what_it_did_not_claim_is_a_400_that_names_the_field(dialect: str) -> None:
    fields = {"top_k": 3, "min_p": 0.1, "frequency_penalty": 0.5, "logit_bias": {"5": 1}, "stop_token_ids": [5]}
    for name, answer in zip(fields, ask(dialect, *({**ASKED, name: value} for name, value in fields.items())), strict=True):
        assert answer.status == 400
        assert f"'{name}' ".encode() in answer.body


def test_stop_strings_several_samples_and_streams_are_done_above_it() -> None:
    whole, stopped, several, streamed = ask("openai", ASKED, {**ASKED, "stop": "e"}, {**ASKED, "n": 3}, {**ASKED, "stream": True})
    text = whole.json()["choices"][0]["text"]
    assert stopped.json()["choices"][0]["text"] == text.partition("e")[0]
    assert [choice["index"] for choice in several.json()["choices"]] == [0, 1, 2]
    assert streamed.body.endswith(b"data: [DONE]\n\n")
