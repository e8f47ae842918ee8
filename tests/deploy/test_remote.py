"""A worker over TCP: the host starts and ends it, the link finds it again."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import sys
import time
from typing import Any

import pytest
from tests.deploy.replicas import ADDRESS, CONFIG, SECRET, Hosts, collect, kill, ready, spec, until, workers

from quintet.backends.base import State
from quintet.backends.native.front.connection import Connection, Peer
from quintet.backends.native.front.engine import Engine
from quintet.backends.native.front.link import ThreadLink
from quintet.backends.native.wire import codec
from quintet.backends.native.wire.messages import Load
from quintet.backends.native.wire.sources import ModelSource
from quintet.backends.toy import ToyTokenizer, toy_loader
from quintet.config import EngineConfig
from quintet.deploy import host, remote
from quintet.deploy.host import SECRET_BYTES
from quintet.deploy.remote import CLOCK, Place, RemoteLink
from quintet.errors import ModelError
from quintet.events import Finish
from quintet.inputs.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_it_computes_what_a_worker_here_does() -> None:
    async def scenario() -> None:
        here = Engine(ThreadLink(toy_loader(), EngineConfig(), time.monotonic), EngineConfig())
        async with ready(Hosts().make()) as there, ready(here):
            ours, theirs = [await collect(one, spec("The quick brown fox", 40)) for one in (here, there)]
            assert [event.token for event in theirs] == [event.token for event in ours]
            assert theirs[-1].finish is Finish.LENGTH
            assert 0 <= theirs[0].waited < 5  # by one clock, whichever machine it is
            assert there.health().pid is None

    asyncio.run(scenario())


@pytest.mark.fault("E14")
def test_a_worker_that_is_killed_is_started_again_and_what_it_had_not_begun_is_done() -> None:
    async def scenario() -> None:
        before = {*workers()}
        async with ready(Hosts().make()) as engine:
            (worker,) = {*workers()} - before
            kill(worker)
            await until(lambda: engine.health().incidents.crashed == 1)
            await until(lambda: engine.health().state is State.READY)
            events = await collect(engine, spec())
            assert events[-1].finish is Finish.LENGTH
            assert worker not in workers()
        await until(lambda: {*workers()} <= before)  # the host ends a worker whose front has gone

    asyncio.run(scenario())


def test_closing_frees_the_host_once() -> None:
    async def scenario() -> None:
        hosts = Hosts()
        async with ready(hosts.make()) as engine:
            assert hosts.released == []
            await engine.close()
        assert hosts.released == [0, 0]

    asyncio.run(scenario())


@pytest.mark.parametrize("said", [b"x" * 32, b"", SECRET[:-1]])
def test_who_does_not_know_the_secret_gets_no_worker_and_disturbs_none(said: bytes) -> None:
    async def scenario() -> None:
        hosts = Hosts()
        async with ready(hosts.make()) as engine:
            before = {*workers()}
            with socket.create_connection((ADDRESS, hosts.hosts[0].port), 10) as sock:
                sock.sendall(said)
                sock.shutdown(socket.SHUT_WR)
                await asyncio.to_thread(_ends, sock)
            assert {*workers()} == before
            assert (await collect(engine, spec()))[-1].finish is Finish.LENGTH

    asyncio.run(scenario())


def _ends(sock: socket.socket) -> None:
    sock.settimeout(10)
    with contextlib.suppress(ConnectionResetError):
        assert sock.recv(CLOCK.size) == b""


def test_a_secret_that_comes_byte_by_byte_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of it has one time, or who has no secret could keep the host from looking after its worker."""
    monkeypatch.setattr(host, "HELLO_S", 0.5)
    with socket.create_connection((ADDRESS, Hosts().listen().port), 10) as sock:
        sock.settimeout(0.1)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < SECRET_BYTES - 1:
                sock.sendall(SECRET[:1])
                sent += 1
                with contextlib.suppress(TimeoutError):
                    assert sock.recv(1) == b""
                    break
    assert sent < SECRET_BYTES - 1


@pytest.mark.fault("D12")
def test_a_host_without_a_descriptor_for_a_connection_takes_it_when_there_is_one(caplog: pytest.LogCaptureFixture) -> None:
    """The thread that takes them ended with the error, and the replica could never be reached again."""
    listening, before = Hosts().listen(), {*workers()}
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as sock:
        sock.settimeout(60)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            sock.connect((ADDRESS, listening.port))
            while "no connection can be taken" not in caplog.text:
                time.sleep(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        sock.sendall(SECRET)
        assert len(sock.recv(CLOCK.size, socket.MSG_WAITALL)) == CLOCK.size
    while not {*workers()} <= before:  # the host ends the worker of a front that has gone
        time.sleep(0.01)


@pytest.mark.fault("D12")
def test_a_front_without_a_descriptor_for_a_connection_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for the connection for ever."""
    refused = list[Peer]()

    class OnceRefused(Connection):
        def __init__(self, child: Peer, *then: Any) -> None:
            if not refused:
                refused.append(child)
                child.drop()
                raise OSError(24, "Too many open files")
            super().__init__(child, *then)

    async def scenario() -> None:
        before = {*workers()}
        async with ready(Hosts().make()) as engine:
            monkeypatch.setattr(remote, "Connection", OnceRefused)
            kill(({*workers()} - before).pop())
            await until(lambda: engine.health().incidents.unstarted == 1)
            await until(lambda: engine.health().state is State.READY)
            assert (await collect(engine, spec()))[-1].finish is Finish.LENGTH
        assert refused[0].sock.fileno() == -1

    asyncio.run(scenario())


def test_a_front_with_a_wrong_secret_is_told_so() -> None:
    async def scenario() -> None:
        engine = Hosts(secret=b"w" * 32).make()
        await until(lambda: engine.health().state is State.DEAD)
        assert "the host refuses the secret" in str(engine.failure) or "reset" in str(engine.failure)
        await engine.close()

    asyncio.run(scenario())


def test_a_replica_is_told_where_its_models_are_on_its_own_machine() -> None:
    async def scenario() -> None:
        with socket.create_server((ADDRESS, 0)) as listener:

            async def find() -> Place:
                return Place(ADDRESS, listener.getsockname()[1], "/there/model", "/there/draft")

            def told() -> Load:
                listener.settimeout(60)
                sock, _ = listener.accept()
                with sock:
                    assert sock.recv(SECRET_BYTES, socket.MSG_WAITALL) == SECRET
                    sock.sendall(CLOCK.pack(0.0))
                    splitter, frames = codec.Splitter(), list[bytes]()
                    while not frames:
                        frames += splitter.feed(sock.recv(1 << 16))
                    message = codec.decode_to_worker(frames[0])
                assert isinstance(message, Load)
                return message

            source = ModelSource(path="/here/model", threads=1, context=None, name="toy", vision="/here/model", draft="/here/draft")
            link = RemoteLink(source, ToyTokenizer, CONFIG, find, SECRET, lambda: None)
            link.start(lambda _: None)
            loaded = (await asyncio.to_thread(told)).source
            assert (loaded.path, loaded.vision, loaded.draft) == ("/there/model", "/there/model", "/there/draft")
            await link.close()

    asyncio.run(scenario())


def test_a_tokenizer_that_cannot_be_loaded_is_told_while_a_replica_is_still_waited_for() -> None:
    """Ray may have room for it in minutes, or never."""

    def bad() -> Tokenizer:
        raise ModelError("no such tokenizer.")

    async def find() -> Place:
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario() -> None:
        released: list[bool] = []
        source = ModelSource(path="/elsewhere", threads=1, context=None, name="toy")
        engine = Engine(RemoteLink(source, bad, CONFIG, find, SECRET, lambda: released.append(True)), CONFIG)
        async with asyncio.timeout(60):
            await until(lambda: engine.health().state is State.DEAD)
        assert str(engine.failure) == "no such tokenizer."
        await engine.close()
        assert released == [True]

    asyncio.run(scenario())
