"""Files and batches of a server in this process, and whoever asks it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.backends.contract.conftest import ready
from tests.server.asgi import JSON, Answer, acall
from tests.server.one import create_reloading

from quintet.backends.native.front.engine import Engine
from quintet.backends.toy import toy_loader
from quintet.config import BatchConfig, EngineConfig, ServerConfig
from quintet.ledger.ledger import Ledger
from quintet.server.asgi import ASGIApp, Message
from quintet.server.source import Source

BOUNDARY = "a-boundary"
FORM = ("content-type", f"multipart/form-data; boundary={BOUNDARY}")
GOOD = {"input_file_id": "", "endpoint": "/v1/completions", "completion_window": "24h"}


class Clock:
    """Unix time that tests move."""

    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """A server, and who asks it."""

    app: ASGIApp
    folder: Path
    clock: Clock
    key: str = ""

    @property
    def auth(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self.key}")] if self.key else []

    async def get(self, path: str, query: str = "") -> Answer:
        return await acall(self.app, method="GET", path=path, query=query, headers=self.auth)

    async def post(self, path: str, body: object = b"") -> Answer:
        return await acall(self.app, body, path=path, headers=[*JSON, *self.auth])

    async def upload(self, data: bytes, path: str = "/v1/files", **fields: str) -> Answer:
        return await self.form(form(data, **{"purpose": "batch", **fields}), path)

    async def form(self, body: object, path: str = "/v1/files", *headers: tuple[str, str]) -> Answer:
        return await acall(self.app, body, path=path, headers=[*(headers or (FORM,)), *self.auth])

    async def begin(self, *lines: dict[str, object], **more: object) -> dict[str, Any]:
        file = (await self.upload(jsonl(*lines))).json()
        made = await self.post("/v1/batches", {**GOOD, "input_file_id": file["id"], **more})
        assert made.status == 200, made.body
        batch: dict[str, Any] = made.json()
        return batch

    async def ended(self, batch: dict[str, Any]) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while True:
                now: dict[str, Any] = (await self.get(f"/v1/batches/{batch['id']}")).json()
                if now["status"] in ("completed", "failed", "expired", "cancelled"):
                    return now
                await asyncio.sleep(0.01)

    async def lines(self, id_: str) -> list[Any]:
        return [json.loads(text) for text in (await self.get(f"/v1/files/{id_}/content")).body.splitlines()]


def form(data: bytes, **fields: str) -> bytes:
    parts = [f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{key}"\r\n\r\n{value}\r\n' for key, value in fields.items()]
    head = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\ncontent-type: text/plain\r\n\r\n'
    return "".join(parts).encode() + head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()


def line(name: str, **body: object) -> dict[str, object]:
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {"prompt": name, "max_tokens": 3, **body}}


def jsonl(*lines: dict[str, object]) -> bytes:
    return "".join(f"{json.dumps(one)}\n" for one in lines).encode()


@asynccontextmanager
async def world(folder: Path, kept: BatchConfig | None = None, ledger: Ledger | None = None, **config: Any) -> AsyncIterator[World]:
    clock = Clock()
    kept = kept or BatchConfig(folder / "kept")
    made = [Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22))]
    async with ready(made[0]):

        def start() -> Engine:
            return made.pop() if made else Engine(toy_loader(), EngineConfig(kv_bytes=1 << 22))

        app = create_reloading(start, ServerConfig(batches=kept, **config), ("toy",), source=Source(now=clock), ledger=ledger)
        arriving: asyncio.Queue[Message] = asyncio.Queue()
        told: asyncio.Queue[Message] = asyncio.Queue()
        life = asyncio.create_task(_live(app, arriving, told))
        arriving.put_nowait({"type": "lifespan.startup"})
        await told.get()
        try:
            yield World(app, kept.folder, clock)
        finally:
            arriving.put_nowait({"type": "lifespan.shutdown"})
            await life


async def _live(app: ASGIApp, arriving: asyncio.Queue[Message], told: asyncio.Queue[Message]) -> None:
    await app({"type": "lifespan"}, arriving.get, told.put)


def play(folder: Path, scenario: Callable[[World], Awaitable[None]], **how: Any) -> None:
    async def go() -> None:
        async with world(folder, **how) as made:
            await scenario(made)

    asyncio.run(go())
