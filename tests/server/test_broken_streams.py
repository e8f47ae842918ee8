"""Streams that break, in every dialect and shape: an error, and nothing that looks like an end."""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.server.asgi import Answer, acall
from tests.server.one import create_app
from tests.server.scripted import ScriptedBackend

from quintet.config import ServerConfig
from quintet.dialects.catalog import PROVIDERS


@pytest.mark.fault("E05")
@pytest.mark.parametrize("ends", [False, True], ids=["the engine fails", "the server ends"])
@pytest.mark.parametrize(
    "path", [*(f"{provider.bases[0]}/completions" for provider in PROVIDERS.values()), "/completion", "/fim/completions"]
)
def test_a_stream_that_breaks_never_says_that_its_text_has_ended(path: str, ends: bool) -> None:
    """What is called off would end as "length", which no client takes for an error. Fireworks' page has the word "error"."""
    backend = ScriptedBackend(length=None, context=10_000_000, pause=0.001, break_after=None if ends else 5)
    app = create_app(backend, ServerConfig())

    async def ask() -> Answer:
        answer = Answer()
        asking = asyncio.create_task(acall(app, {"prompt": "a", "max_tokens": 1_000_000, "stream": True}, path=path, into=answer))
        while ends and len(answer.parts) < 3:
            await asyncio.sleep(0.001)
        backend.closed = ends
        return await asking

    answer = asyncio.run(ask())
    assert (answer.status, answer.complete) == (200, False)
    assert re.search(rb'"(finish_reason|stop_type)": ?"(?!error")', answer.body) is None
    assert b'"stop":true' not in answer.body and b"[DONE]" not in answer.body
    assert b"error" in answer.parts[-1]
