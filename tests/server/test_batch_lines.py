"""A line of a batch, computed by itself."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from tests.server.asgi import SOURCE

from quintet.batch import Batch, NewBatch, Tokens
from quintet.batches.lines import Answer, Line
from quintet.batches.runner import PendingLine
from quintet.dialects.base import Identity
from quintet.events import ChoiceDone, Finish, Finished, Usage
from quintet.server.auth import ANYBODY
from quintet.server.call import Call
from quintet.server.completions import CompletionApi
from quintet.server.lines import Lines


class Answers:
    """Completions whose answers are no JSON."""

    async def answer(self, call: Call, api: CompletionApi) -> None:
        parsed = api.format.parse(b'{"prompt": "a"}', 1)
        renderer = api.format.renderer(parsed.request, Identity(id="0", created=1, model="m", fingerprint="f"), parsed.options)
        for event in (ChoiceDone(0, Finish.EOS), Finished(Usage(3, 5, cached_tokens=1, reasoning_tokens=2))):
            renderer.add(event)
        await call.http.reply(200, b"whatever it is")


def test_what_a_line_took_is_not_looked_for_in_its_answer() -> None:
    """Which may have a hundred megabytes, and to read those held the event loop up."""
    new = NewBatch(input_file="file-1", endpoint="/v1/completions", window="24h", window_s=60)
    batch = Batch(id="batch_1", owner="", dialect="openai", asked=new, created=0, expires=60)
    compute = Lines(lambda _: Answers(), SimpleNamespace(of_owner=lambda _: ANYBODY), SOURCE)  # type: ignore[arg-type, return-value]
    answer = asyncio.run(compute(PendingLine(batch, Line(1, 0, 2, "a", 0), b"{}")))
    assert answer == Answer(200, b"whatever it is", Tokens(3, 5, 2))
