"""Who is told that the event loop turns, and what becomes of a server whose loop does not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.test_serve_command import PATIENCE_S, served
from tests.e2e.test_serve_process import Streaming, child_of, children_of, engine_of, gone
from tests.reference.tiny_model import TinySpec, write_tiny

from quintet.cli import heart, watch
from quintet.cli.heart import Heart

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel")

HANGING = """
import re, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: re.match(r"(a+)+b", "a" * 60))
sys.argv[0] = "quintet"
from quintet.cli import main
main()
"""
"""A server that upon SIGUSR1 begins a match without end, which holds the interpreter's lock."""


@pytest.mark.fault("C04")
def test_a_front_that_hangs_is_ended_from_outside_tells_where_and_takes_its_children_along() -> None:
    with served("--toy", "--watchdog", "2", code=HANGING) as one:
        engine, watcher, stream = engine_of(one), child_of(one, b"watch.py"), Streaming(one)
        assert stream.begun.wait(PATIENCE_S)
        code, err = one.end(signal.SIGUSR1)
        assert code == -signal.SIGABRT
        assert "the event loop has stood still for 2 s; the server is ended, to be started again\n" in err
        assert "in <lambda>" in err, "where it stood"
        assert gone(engine) and gone(watcher)
        stream.join(PATIENCE_S)


def test_a_server_that_works_or_was_stopped_together_with_its_watcher_is_left_alone() -> None:
    with served("--toy", "--watchdog", "1") as one:
        watcher = child_of(one, b"watch.py")
        for number in (signal.SIGSTOP, signal.SIGCONT):
            os.kill(watcher, number)
            one.process.send_signal(number)
            time.sleep(1.5)
        assert one.post({"prompt": "x", "max_tokens": 1})[0] == 200
        os.kill(watcher, signal.SIGTERM)
        assert child_of(one, b"watch.py") == watcher, "it is the front's, and no service manager's, to end"
        os.kill(watcher, signal.SIGKILL)
        while True:
            with contextlib.suppress(ValueError):
                if child_of(one, b"watch.py") != watcher:
                    break
            time.sleep(0.01)
        assert one.end(signal.SIGTERM)[0] == 0


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A service manager's socket, which the environment names."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@quintet-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address.replace("@", "\0", 1))
        sock.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        yield sock


def test_the_service_manager_is_told_of_the_start_the_end_and_each_beat(manager: socket.socket) -> None:
    with served("--toy", WATCHDOG_USEC="2000000") as one:
        assert one.post({"prompt": "x", "max_tokens": 1})[0] == 200
        seen = [manager.recv(1024)]
        while seen[-2:] != [b"READY=1", b"WATCHDOG=1"]:
            seen.append(manager.recv(1024))
        one.process.send_signal(signal.SIGTERM)
        while seen[-1] != b"STOPPING=1":
            seen.append(manager.recv(1024))
        assert one.process.wait(PATIENCE_S) == 0
        assert set(seen) == {b"WATCHDOG=1", b"READY=1", b"STOPPING=1"}
        assert seen.count(b"READY=1") == 1


def told(manager: socket.socket) -> list[bytes]:
    """All that a server said which has ended."""
    manager.setblocking(False)
    seen: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while True:
            seen.append(manager.recv(1024))
    return seen


def test_a_reload_while_the_models_load_tells_the_service_manager_nothing(manager: socket.socket, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny"))
    command = [sys.executable, "-m", "quintet", "serve", "--port", "0", str(path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            while not (engines := children_of(process.pid, b"worker.child")):
                time.sleep(0.001)
            os.kill(engines[0], signal.SIGSTOP)
            while not children_of(process.pid, b"watch.py"):  # the event loop is there
                time.sleep(0.001)
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGTERM)  # which has the higher number, and is heard behind it
            process.communicate(timeout=PATIENCE_S)
            assert (process.returncode, told(manager)) == (0, [])
        finally:
            process.kill()


def test_a_reload_while_the_server_drains_does_not_tell_the_service_manager_that_it_is_ready(manager: socket.socket) -> None:
    with served("--toy") as one:
        engine, stream = engine_of(one), Streaming(one)
        assert stream.begun.wait(PATIENCE_S)
        os.kill(engine, signal.SIGSTOP)
        one.process.send_signal(signal.SIGTERM)
        seen = [manager.recv(1024)]
        while seen[-1] != b"STOPPING=1":
            seen.append(manager.recv(1024))
        one.process.send_signal(signal.SIGHUP)
        assert one.end(signal.SIGTERM)[0] == 0
        stream.join(PATIENCE_S)
        assert (seen, told(manager)) == ([b"READY=1", b"STOPPING=1"], [])


def test_a_reload_is_told_with_its_time(manager: socket.socket) -> None:
    before = time.monotonic_ns() // 1000
    heart.reloading()
    name, _, rest = manager.recv(1024).decode().partition("\n")
    assert name == "RELOADING=1"
    assert before <= int(rest.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


@pytest.mark.parametrize(
    ("pid", "microseconds", "seconds"), [("", "30000000", 30.0), ("1", "30000000", 0.0), ("", "x", 0.0), ("", "", 0.0)]
)
def test_only_who_is_meant_is_watched_by_the_manager(pid: str, microseconds: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", microseconds)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    if pid:
        monkeypatch.setenv("WATCHDOG_PID", pid)
    assert heart.manager_s() == seconds


def test_nobody_who_listens_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("", "nonsense", "/nowhere/at/all", "@nobody"):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        heart.notify(READY=1)


def test_a_watcher_that_cannot_be_started_is_logged_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, refused = subprocess.Popen, 2

    def popen(*words: object, **options: object) -> object:
        nonlocal refused
        if refused:
            refused -= 1
            raise OSError(12, "Cannot allocate memory")
        return real(*words, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", popen)

    async def scenario() -> None:
        with Heart(0.5) as made:
            while made._watcher is None:
                await asyncio.sleep(0.01)

    before = len(list(Path("/proc/self/fd").iterdir()))
    asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == ["nobody watches over the event loop now: Cannot allocate memory"] * 2
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_without_a_watchdog_there_is_no_process() -> None:
    async def scenario() -> None:
        with Heart(0.0) as made:
            assert made._watcher is None

    asyncio.run(scenario())
    assert watch.TICKS > 1
