"""As many connections as a process has descriptors for, and more: the server answers, and its engine can be started again."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from tests.e2e.test_serve_command import PATIENCE_S
from tests.e2e.test_serve_process import children_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

FILES = 252
ROOM = FILES - 192  # fewer than run at once, so that each has begun
MANY = int(os.environ.get("QUINTET_TEST_IDLE_SOCKETS", "300"))
"""Connections, twice: more than the server's process may have. 2,000 is the fault table's number."""

STREAM = b'{"prompt":"x","max_tokens":4000,"stream":true,"ignore_eos":true}'
POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


@contextlib.contextmanager
def poor(*words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server that may have ``FILES`` open files, and its port. Its soft limit is lower, as on most systems."""
    command = [sys.executable, "-m", "quintet", "serve", "--toy", "--port", "0", "--log-level", "error", *words]
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (150, FILES))  # noqa: E731
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=limit)
    try:
        assert process.stdout
        found = re.search(r":(\d+)/v1", process.stdout.readline())
        assert found
        yield process, int(found[1])
    finally:
        process.kill()
        process.communicate()


def connect(port: int, said: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    client.sendall(said)
    return client


def ask(port: int, path: bytes = b"/health", method: bytes = b"GET") -> bytes:
    with connect(port, b"%b %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % (method, path)) as client:
        got = b""
        while part := client.recv(65536):
            got += part
    return got


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """This process holds the other ends."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2 * MANY + 200:
        pytest.skip(f"needs {2 * MANY + 200} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2 * MANY + 200), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.fault("B22")
def test_an_engine_killed_while_connections_take_all_that_there_is_comes_back() -> None:
    """Issue 12, row 11. None of the connections is cut without a word, whether it said half a head or nothing at all."""
    with poor() as (process, port), contextlib.ExitStack() as held:
        clients = [held.enter_context(connect(port, b"GET /livez HTTP/1.1\r\nhost: loc" if n % 2 else b"")) for n in range(MANY)]
        (engine,) = children_of(process.pid, b"worker.child")
        os.kill(engine, signal.SIGKILL)
        end = time.monotonic() + PATIENCE_S
        while not ask(port).startswith(b"HTTP/1.1 200"):
            assert time.monotonic() < end
            time.sleep(0.02)
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < FILES  # noqa: PTH208 - a count
        for client in clients:
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                assert client.recv(100) in (b"", b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


@pytest.mark.fault("B22")
def test_probes_are_answered_beside_idle_streams_and_idle_connections_and_others_told_to_come_again() -> None:
    body = POST % len(STREAM) + STREAM
    with poor("--max-waiting", str(2 * MANY)) as (process, port), contextlib.ExitStack() as held:
        streams = [held.enter_context(connect(port, body)) for _ in range(ROOM)]
        for each in streams:
            assert each.recv(15) == b"HTTP/1.1 200 OK"
        for _ in range(MANY):
            held.enter_context(connect(port, b""))  # says nothing: gives way
        assert ask(port).startswith(b"HTTP/1.1 200")
        refused = ask(port, b"/v1/models")
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"\r\nretry-after: 1\r\n" in refused
        before = _ticks(process.pid)
        time.sleep(0.5)
        assert _ticks(process.pid) - before < 100, "a second of processor time in half a second would be spinning"
        for each in streams[:3]:  # the readers are not forgotten
            assert each.recv(1 << 16)


def _ticks(pid: int) -> int:
    from pathlib import Path

    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_limit_for_which_there_are_no_descriptors_is_told() -> None:
    command = [sys.executable, "-m", "quintet", "serve", "--toy", "--port", "0", "--max-connections", str(ROOM + 1)]
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))  # noqa: E731
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, preexec_fn=limit, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: --max-connections must be at most {ROOM}, since this process may have {FILES} open files")
