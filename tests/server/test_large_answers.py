"""Large answers that are complete before they are sent have bounded room over all connections; tokens' are in ``test_tokens.py``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.server.asgi import unread
from tests.server.kept import World, line, play

from quintet.server import large_answers


@pytest.mark.fault("B23")
@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
def test_lists_that_wait_for_clients_have_bounded_room(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key may have ten thousand files with long names, and a client that reads nothing may ask for their list over every connection."""
    most = 5000
    monkeypatch.setattr(large_answers, "LARGE_BYTES", 100)
    monkeypatch.setattr(large_answers, "MOST_ANSWERS", most)

    async def scenario(one: World) -> None:
        await one.ended(await one.begin(line("a"), metadata={"a": "b" * 500}))
        size = len((await one.get(path)).body)
        read, sent = asyncio.Event(), list[bytes]()
        waiting = [asyncio.create_task(unread(one.app, path, {}, read, sent, method="GET")) for _ in range(most // size)]
        while len(sent) < len(waiting):
            await asyncio.sleep(0.001)
        refused = await one.get(path)
        assert (refused.status, refused.header("retry-after") is not None) == (503, True)
        read.set()
        await asyncio.gather(*waiting)
        assert (await one.get(path)).status == 200

    play(tmp_path, scenario)
