"""Large answers that are no completions: bounded room over all connections, and nothing is read for nobody. See also ``test_tokens.py``."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.server.asgi import acall, unread
from tests.server.kept import World, line, play

from quintet.server import files, large_answers
from quintet.server.asgi import Message


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


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where a file's content was read."""
    found, pread = list[int](), os.pread

    def noted(fd: int, size: int, start: int) -> bytes:
        found.append(start)
        return pread(fd, size, start)

    monkeypatch.setattr(os, "pread", noted)
    monkeypatch.setattr(files, "_PIECE", 100)
    return found


def test_of_a_file_whose_head_alone_is_asked_for_nothing_is_read(tmp_path: Path, reads: list[int]) -> None:
    async def scenario(one: World) -> None:
        file = (await one.upload(b"x" * 1000)).json()["id"]
        head = await acall(one.app, method="HEAD", path=f"/v1/files/{file}/content")
        assert (head.status, head.header("content-length"), head.body, head.complete) == (200, "1000", b"", True)

    play(tmp_path, scenario)
    assert not reads


def test_of_a_file_whose_client_has_left_nothing_more_is_read_and_it_counts_as_gone(tmp_path: Path, reads: list[int]) -> None:
    async def scenario(one: World) -> None:
        file = (await one.upload(b"x" * 1000)).json()["id"]
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body" and not lost.done():
                lost.set_result(None)

        scope = {"type": "http", "method": "GET", "path": f"/v1/files/{file}/content", "headers": [], "state": {"lost": lost}}
        await one.app(scope, receive, send)
        metrics = (await one.get("/metrics")).body.decode()
        assert 'quintet:client_disconnects_total{when="in_answer"} 1.0' in metrics

    play(tmp_path, scenario)
    assert reads == [0]
