"""The front of ``quintet cluster --ray-proxy``, without Ray: its replicas are an engine here."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from quintet.cli import cluster, proxied, serving
from quintet.cli.app import app


class FakeRay(ModuleType):
    """In the place of ``deploy.ray``: keeps what makes the front, which Ray Serve calls in a process of its own, and stops at once."""

    build: Callable[[], proxied.Front]

    def behind_proxy(self, build: Callable[[], proxied.Front]) -> None:
        self.build = build

    def listening(self, _: None, host: str, port: int) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    def disconnect(self) -> None:
        pass


def building(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Callable[[], proxied.Front]:
    """What the command gives Ray Serve to make the front with."""

    async def at_once() -> None:
        pass

    ray = FakeRay("quintet.deploy.ray")
    monkeypatch.setitem(sys.modules, ray.__name__, ray)
    monkeypatch.setattr(cluster, "join", lambda *_: None)
    monkeypatch.setattr(cluster, "distributed", lambda fleet, *_: fleet)
    monkeypatch.setattr(serving, "log_to_stderr", lambda *_: None)
    monkeypatch.setattr(proxied, "_until_stopped", at_once)
    app(["cluster", "--toy", "--ray-proxy", "--ray-address", "auto", "--no-batches", *arguments], standalone_mode=False)
    return ray.build


def statuses(build: Callable[[], proxied.Front], hosts: tuple[str, ...]) -> list[int]:
    """Of requests to these hosts."""

    async def asked() -> list[int]:
        front = build()
        begin, end = asyncio.Event(), asyncio.Event()
        told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        async def lifespan() -> dict[str, Any]:
            if not begin.is_set():
                begin.set()
                return {"type": "lifespan.startup"}
            await end.wait()
            return {"type": "lifespan.shutdown"}

        life = asyncio.create_task(front({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, lifespan, told.put))
        assert (await told.get())["type"] == "lifespan.startup.complete"
        found = [await status(front, host) for host in hosts]
        end.set()
        await life
        return found

    return asyncio.run(asked())


async def status(front: proxied.Front, host: str) -> int:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/v1/models",
    }
    scope |= {"raw_path": b"/v1/models", "query_string": b"", "root_path": "", "headers": [(b"host", host.encode())]}
    await front(scope | {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000)}, receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), [200, 200, 421, 421]),
        (("--allowed-host", "llm.example"), [200, 200, 200, 421]),
        (("--host", "0.0.0.0", "--no-api-key"), [200, 200, 421, 421]),
        (("--api-key", "k"), [401, 401, 401, 401]),
        (("--api-key", "k", "--allowed-host", "llm.example"), [401, 401, 401, 421]),
    ],
)
def test_without_keys_only_hosts_that_mean_this_machine_are_answered(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: list[int]
) -> None:
    """As by ``quintet serve``: a web page that makes its own name mean this machine gets no answer."""
    assert statuses(building(monkeypatch, *arguments), ("localhost:8000", "127.0.0.1", "llm.example", "evil.example")) == expected


def test_where_a_name_says_where_to_listen_its_address_is_answered_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by ``quintet serve``, which answers to what it listens on."""
    found = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("192.0.2.5", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [found])
    build = building(monkeypatch, "--host", "llm.example", "--no-api-key")
    assert statuses(build, ("192.0.2.5:8000", "192.0.2.6", "evil.example")) == [200, 421, 421]


def test_paths_are_relative_to_where_the_command_was_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ray's processes run in other folders."""
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    other.mkdir()
    monkeypatch.chdir(here)
    build = building(monkeypatch, "--ledger", "ledger.db")
    monkeypatch.chdir(other)
    assert statuses(build, ("localhost",)) == [200]
    assert ((here / "ledger.db").is_file(), list(other.iterdir())) == (True, [])
