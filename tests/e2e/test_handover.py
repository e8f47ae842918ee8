"""``quintet serve`` gives its sockets to a new process, or gets them from whoever starts it; no request is lost."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.e2e.test_serve_command import PATIENCE_S, Served, served
from tests.e2e.test_serve_process import children_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

HANDOVERS = int(os.environ.get("QUINTET_TEST_HANDOVERS", "2"))
BODY = json.dumps({"prompt": "x", "max_tokens": 8, "temperature": 0}).encode()
SERVE = b"\0serve\0"
JSON = {"Content-Type": "application/json"}


class Clients:
    """Three that ask without pause until ``end``: on a connection each, on a new one for each request, and for long streams."""

    def __init__(self, one: Served) -> None:
        self.host, _, port = one.url.removeprefix("http://").partition(":")
        self.port = int(port)
        self.over = threading.Event()
        self.seen: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._repeat, args=(what,)) for what in (self._kept, self._fresh, self._stream)]
        for each in self._threads:
            each.start()

    def end(self) -> Counter[str]:
        self.over.set()
        for each in self._threads:
            each.join(PATIENCE_S)
        return self.seen

    def _repeat(self, what: object) -> None:
        while not self.over.is_set():
            try:
                what()  # type: ignore[operator]
            except Exception as error:
                self.seen[f"{what.__name__}: {error!r}"] += 1  # type: ignore[attr-defined]

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)

    def _kept(self) -> None:
        """As SDKs do: until the server says that it was the last."""
        connection = self._connect()
        while not self.over.is_set():
            connection.request("POST", "/v1/completions", BODY, JSON)
            reply = connection.getresponse()
            reply.read()
            self.seen[f"kept {reply.status}"] += 1
            if reply.will_close:
                break
        connection.close()

    def _fresh(self) -> None:
        connection = self._connect()
        connection.request("POST", "/v1/completions", BODY, {**JSON, "Connection": "close"})
        reply = connection.getresponse()
        reply.read()
        self.seen[f"fresh {reply.status}"] += 1
        connection.close()

    def _stream(self) -> None:
        connection = self._connect()
        body = json.dumps({"prompt": "x", "max_tokens": 400, "stream": True, "ignore_eos": True}).encode()
        connection.request("POST", "/v1/completions", body, JSON)
        whole = connection.getresponse().read().rstrip().endswith(b"data: [DONE]")
        self.seen["stream whole" if whole else "stream broken"] += 1
        connection.close()


def replaced(pid: int) -> int:
    """Send SIGUSR2, and wait until the process is gone; the new one's number."""
    before = {*children_of(pid, SERVE)}
    os.kill(pid, signal.SIGUSR2)
    end = time.monotonic() + PATIENCE_S
    new = 0
    while time.monotonic() < end:
        new = new or next(iter({*children_of(pid, SERVE)} - before), 0)
        if new and _state(pid) in "ZX":
            return new
        time.sleep(0.02)
    raise AssertionError("no hand-over")


def _state(pid: int) -> str:
    return (_stat(Path(f"/proc/{pid}")) or ["X"])[0]


def _stat(path: Path) -> list[str]:
    try:
        return (path / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


@pytest.mark.fault("D16")
def test_processes_take_over_from_each_other_and_no_request_is_lost() -> None:
    """QUINTET_TEST_HANDOVERS: how often."""
    with served("--toy", "--log-level", "error") as one:
        clients = Clients(one)
        pid = one.process.pid
        for _ in range(HANDOVERS):
            pid = replaced(pid)
        before = clients.seen.copy()
        end = time.monotonic() + PATIENCE_S
        while any(clients.seen[what] == before[what] for what in ("kept 200", "fresh 200", "stream whole")):
            assert time.monotonic() < end, "the last one serves too"
            time.sleep(0.01)
        seen = clients.end()
        print(HANDOVERS, "hand-overs:", dict(seen))
        assert set(seen) == {"kept 200", "fresh 200", "stream whole"}
        os.kill(pid, signal.SIGTERM)
        while _state(pid) not in "ZX":
            time.sleep(0.01)


@pytest.mark.fault("D16")
def test_a_new_process_that_does_not_come_up_changes_nothing(tmp_path: Path) -> None:
    settings = tmp_path / "quintet.toml"
    settings.write_text("timeout = 60\n")
    with served("--toy", "--config", str(settings)) as one:
        settings.write_text('dialect = "klingon"\n')
        one.process.send_signal(signal.SIGUSR2)
        assert one.process.stderr
        said = ""
        while "did not come up; this one serves on" not in said:
            said = one.process.stderr.readline()
        assert one.post({"prompt": "x", "max_tokens": 1})[0] == 200
        assert one.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_though_the_new_process_stands_still(number: signal.Signals) -> None:
    with served("--toy") as one:
        one.process.send_signal(signal.SIGUSR2)
        assert one.process.stderr
        said = None
        while said is None:
            said = re.search(r"hand-over: process (\d+) is started", one.process.stderr.readline())
        os.kill(int(said[1]), signal.SIGSTOP)
        one.process.send_signal(number)
        assert one.process.wait(PATIENCE_S) == 0
        assert _state(int(said[1])) in "ZX"


@pytest.mark.fault("D16")
def test_a_unix_socket_and_the_admin_listener_are_handed_over_too_and_the_file_goes_with_the_last(tmp_path: Path) -> None:
    path = tmp_path / "q.sock"
    command = [sys.executable, "-m", "quintet", "serve", "--toy", "--uds", str(path), "--admin-listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True) as process:
        try:
            assert process.stdout
            assert f" at http://localhost/v1 on {path}, " in process.stdout.readline()
            assert over_unix(path, "/livez") == 200
            pid = replaced(process.pid)
            assert over_unix(path, "/livez") == 200
            assert over_unix(path, "/metrics") == 404
            os.kill(pid, signal.SIGTERM)
            while _state(pid) not in "ZX":
                time.sleep(0.01)
            assert not path.exists()
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def over_unix(path: Path, url: str) -> int:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_S)
        client.connect(str(path))
        client.sendall(b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % url.encode())
        return int(client.recv(65536).split(b" ")[1])


def test_sockets_of_systemd_take_the_place_of_host_and_port() -> None:
    """As systemd starts it; the port that was asked for is not opened."""
    with socket.create_server(("127.0.0.1", 0)) as public, socket.create_server(("127.0.0.1", 0)) as admin:
        there = [one.getsockname()[1] for one in (public, admin)]
        code = (
            "import os, sys; a, b = map(int, sys.argv[1:3]); os.dup2(a, 3); os.dup2(b, 4);"
            "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='2', LISTEN_FDNAMES='quintet.socket:admin');"
            "os.execv(sys.executable, [sys.executable, '-m', 'quintet', 'serve', '--toy', '--port', '1'])"
        )
        descriptors = [fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, 50) for one in (public, admin)]  # out of the way of 3 and 4
        command = [sys.executable, "-c", code, *map(str, descriptors)]
        with subprocess.Popen(command, pass_fds=descriptors, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout
                found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", process.stdout.readline())
                assert found
                assert int(found[1]) == there[0]
                assert [status(port, "/metrics") for port in there] == [404, 200]
                assert [status(port, "/livez") for port in there] == [200, 200]
            finally:
                process.terminate()
                process.communicate(timeout=PATIENCE_S)
                for each in descriptors:
                    os.close(each)
        assert process.returncode == 0


def status(port: int, path: str) -> int:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status


def test_a_hang_up_ends_nothing_but_where_the_terminal_is_gone() -> None:
    """Issue 12, row 13: SIGHUP killed."""
    with served("--toy") as one:
        for _ in range(3):
            one.process.send_signal(signal.SIGHUP)
        assert one.post({"prompt": "x", "max_tokens": 1})[0] == 200
        assert one.end(signal.SIGTERM)[0] == 0


def test_closing_the_terminal_ends_a_server_that_was_started_in_it() -> None:
    import pty

    pid, leader = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "quintet", "serve", "--toy", "--port", "0"])
    said = b""
    while b"Ctrl-C stops." not in said:
        said += os.read(leader, 4096)
    os.close(leader)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
