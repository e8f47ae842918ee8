"""A large request takes room from when it is parsed until it is answered, however small its body was: its texts stay as long."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.server.asgi import JSON, Answer, acall
from tests.server.scripted import ScriptedBackend

from quintet.backends.base import State
from quintet.config import ServerConfig
from quintet.engines.entry import Model
from quintet.engines.names import name_models
from quintet.engines.registry import Registry
from quintet.errors import Overloaded
from quintet.executor import FairExecutor
from quintet.inputs.prepare import INLINE_CHARS
from quintet.keys.key import Key
from quintet.keys.limits import Limiter
from quintet.keys.store import KeyStore
from quintet.request import Image
from quintet.server import app as server
from quintet.server import gate
from quintet.server.asgi import ASGIApp
from quintet.server.auth import ANYBODY

LARGE = {"prompt": "a" * 2 * gate.LARGE_BYTES, "truncate_prompt_tokens": 1, "max_tokens": 7}
PACKED = gzip.compress(json.dumps(LARGE).encode())
GZIP = [*JSON, ("content-encoding", "gzip")]
SMALL = {"prompt": "a", "max_tokens": 7}


@pytest.fixture(autouse=True)
def room_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MOST_BYTES", 2 * len(json.dumps(LARGE)))


def config(**settings: object) -> ServerConfig:
    return ServerConfig(max_body_bytes=2 * gate.LARGE_BYTES + 1000, dialect="cerebras", **settings)  # type: ignore[arg-type]


def create_app(engine: ScriptedBackend, config: ServerConfig, *, lazy: bool = False) -> ASGIApp:
    return server.create_app(Registry([Model("cat", lambda: engine, 1000, lazy=lazy)], name_models([("cat",)])), config)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def waits(app: ASGIApp, gone: asyncio.Event | None = None, headers: Sequence[tuple[str, str]] = GZIP) -> asyncio.Task[Answer]:
    """A large request whose model is not there yet."""
    task = asyncio.create_task(acall(app, PACKED, headers=headers, gone=gone))
    await asyncio.wait({task}, timeout=0.2)
    assert not task.done()
    return task


@pytest.mark.fault("B13", "B18")
def test_those_that_wait_for_a_model_that_is_loaded_are_bounded_and_small_ones_are_not() -> None:
    """Their bodies, of a thousandth of the size, had given their room back: a thousand connections had them as texts, for 15 s."""

    async def test() -> None:
        engine, gone = ScriptedBackend(state=State.LOADING), asyncio.Event()
        app = create_app(engine, config(), lazy=True)
        waiting = [await waits(app), await waits(app, gone)]
        refused = await acall(app, PACKED, headers=GZIP)
        assert (refused.status, refused.header("retry-after")) == (503, "1")
        assert "no room for more large requests" in refused.body.decode()
        waiting += [asyncio.create_task(acall(app, SMALL)) for _ in range(20)]
        gone.set()
        assert (await waiting.pop(1)).status == 0
        waiting.append(await waits(app))
        engine.state = State.READY
        assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}
        assert [(await acall(app, PACKED, headers=GZIP)).status for _ in range(4)] == [200] * 4

    run(test)


def test_token_ids_count_as_the_numbers_that_they_become() -> None:
    rooms, http = gate.Gate(Limiter(0, lambda: 0.0, lambda: 0.0, None), config()), SimpleNamespace(unpacked=1000)
    call: Any = SimpleNamespace(http=http, caller=ANYBODY)
    ids: Any = SimpleNamespace(prompts=("a", (257,) * (gate.MOST_BYTES // 80)), images=())
    with contextlib.ExitStack() as under_way:
        for _ in range(2):
            under_way.enter_context(rooms.admit(call)).hold(ids)
        with pytest.raises(Overloaded):
            under_way.enter_context(rooms.admit(call)).hold(ids)


def test_one_of_message_pack_takes_no_more_than_the_largest_body_whatever_it_is_as_json() -> None:
    """Of a control character JSON makes six bytes, for which there never was room: a 503 whenever it came."""

    async def test() -> None:
        body = msgspec.msgpack.encode({**LARGE, "prompt": "\0" * 2 * gate.LARGE_BYTES})
        app = create_app(ScriptedBackend(), config())
        assert (await acall(app, body, headers=[("content-type", "application/msgpack")])).status == 200

    run(test)


@pytest.mark.fault("B18")
def test_one_that_streams_has_its_room_until_it_ends() -> None:
    async def test() -> None:
        engine = ScriptedBackend(pause=0.05, length=None)
        app = create_app(engine, config())
        streams = [Answer(), Answer()]
        body = json.dumps({**LARGE, "stream": True, "max_tokens": 40}).encode()
        tasks = [asyncio.create_task(acall(app, body, into=into)) for into in streams]
        while not all(stream.parts for stream in streams):
            await asyncio.sleep(0.001)
        engine.pause = 3600.0
        assert (await acall(app, LARGE)).status == 503
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        engine.pause = 0.0
        assert (await acall(app, LARGE)).status == 200

    run(test)


@pytest.mark.fault("B21")
def test_a_key_has_no_more_of_it_than_it_leaves_to_others(tmp_path: Path) -> None:
    async def test() -> None:
        keys = KeyStore(tmp_path / "keys.db")
        greedy, other = ([*GZIP, ("authorization", f"Bearer {keys.add(Key(b'', name))}")] for name in ("greedy", "other"))
        engine = ScriptedBackend(state=State.LOADING)
        app = create_app(engine, config(keys=keys.path), lazy=True)
        waiting = [await waits(app, headers=greedy)]
        refused = await acall(app, PACKED, headers=greedy)
        assert (refused.status, "share of large requests" in refused.body.decode()) == (429, True)
        waiting.append(await waits(app, headers=other))
        engine.state = State.READY
        assert [answer.status for answer in await asyncio.gather(*waiting)] == [200, 200]

    run(test)


@pytest.mark.fault("B18")
def test_images_take_it_until_they_are_read() -> None:
    limits = config()
    rooms, http = gate.Gate(Limiter(0, lambda: 0.0, lambda: 0.0, None), limits), SimpleNamespace(unpacked=limits.max_body_bytes)
    call: Any = SimpleNamespace(http=http, caller=ANYBODY)
    images: Any = SimpleNamespace(prompts=(), images=((Image("x" * (http.unpacked - 1000), "images[0]"),),))
    job: Any = SimpleNamespace(most_tokens=1, held=0)
    with contextlib.ExitStack() as under_way:

        def admitted() -> gate.Admission:
            return under_way.enter_context(rooms.admit(call))

        first, second = admitted(), admitted()
        first.hold(images)
        second.hold(images)
        with pytest.raises(Overloaded):
            admitted().hold(images)
        first.reserve(job)
        third = admitted()
        with pytest.raises(Overloaded):
            third.hold(images)  # its own texts are still there
        http.unpacked -= 1000
        third.hold(images)
    with contextlib.ExitStack() as under_way:  # and it is as it was
        http.unpacked = limits.max_body_bytes
        for _ in range(2):
            admitted().hold(images)
        with pytest.raises(Overloaded):
            admitted().hold(images)


def held(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, list[str]]:
    """Nothing that takes long is done; told are the first that waits for it, and who was called off."""
    waiting, called_off = asyncio.Event(), list[str]()

    async def wait(_executor: FairExecutor, tenant: str, _work: object) -> None:
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            called_off.append(tenant)

    monkeypatch.setattr(FairExecutor, "run", wait)
    return waiting, called_off


@pytest.mark.fault("B18", "D08")
@pytest.mark.parametrize("size", [INLINE_CHARS + 1, 60_000])
def test_one_whose_client_leaves_while_its_text_waits_to_be_tokenised_is_not_tokenised(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,600 such clients had gigabytes of ids made for nobody, and others wait for that."""

    async def test() -> None:
        app, gone = create_app(ScriptedBackend(), config()), asyncio.Event()
        waiting, called_off = held(monkeypatch)
        task = asyncio.create_task(acall(app, {"prompt": "a" * size, "max_tokens": 1}, gone=gone))
        await waiting.wait()
        assert not called_off
        gone.set()
        answer = await task
        assert (answer.status, len(called_off)) == (0, 1), "else it was called off when this test's time was up"

    run(test)


@pytest.mark.fault("D02")
def test_one_that_still_waits_when_the_server_ends_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn calls its task off, which was an error in the log with a traceback, and a connection that broke."""

    async def test() -> None:
        app = create_app(ScriptedBackend(), config())
        waiting, called_off = held(monkeypatch)
        task = asyncio.create_task(acall(app, {"prompt": "a" * 60_000, "max_tokens": 1}))
        await waiting.wait()
        task.cancel()
        answer = await task
        assert (answer.status, len(called_off)) == (503, 1)
        assert "shutting down" in answer.json()["message"]

    run(test)


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/detokenize"])
def test_one_whose_client_leaves_while_its_body_waits_to_be_parsed_is_not_parsed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 such clients, which no limit on connections counted any more, left a gigabyte of bodies to be parsed for nobody."""

    async def test() -> None:
        app, gone = create_app(ScriptedBackend(), config()), asyncio.Event()
        waiting, called_off = held(monkeypatch)
        body = json.dumps({"prompt": "a" * 60_000, "tokens": [1] * 20_000}).encode()
        task = asyncio.create_task(acall(app, body, path=path, gone=gone))
        await waiting.wait()
        gone.set()
        answer = await task
        assert (answer.status, len(called_off)) == (0, 1), "else it was called off when this test's time was up"

    run(test)
