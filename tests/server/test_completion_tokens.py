"""Which tokens an answer of ``/completion`` has where a stop string ended its text."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.server.asgi import Answer, acall
from tests.server.one import create_app
from tests.server.scripted import FIRST_WORD, ScriptedBackend
from tests.server.test_other_routes import frames

from quintet.config import ServerConfig


def test_a_token_that_a_stop_string_cut_in_two_is_among_the_tokens_and_those_of_the_stop_string_are_only_counted() -> None:
    """llama-server, process_token: a token is among them before the stop strings are looked for, and nothing takes it out again."""
    app = create_app(ScriptedBackend(), ServerConfig())
    asked = {"prompt": "a", "n_predict": 7, "return_tokens": True}

    async def go(**more: Any) -> Answer:
        return await acall(app, {**asked, **more}, path="/completion")

    cut, whole = (asyncio.run(go(stop=[stop])).json() for stop in ("at sat", " cat sat"))
    assert (cut["content"], cut["tokens"], cut["tokens_predicted"]) == (" the c", [FIRST_WORD, FIRST_WORD + 1], 3)
    assert (whole["content"], whole["tokens"], whole["tokens_predicted"]) == (" the", [FIRST_WORD], 3)
    parts = frames(asyncio.run(go(stop=["at sat"], stream=True)))
    assert [token for part in parts for token in part["tokens"]] == cut["tokens"]
