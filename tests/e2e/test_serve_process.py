"""``quintet serve`` and its engine's process: draining, crashes seen over HTTP, ends of all kinds, starts that fail."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.e2e.test_serve_command import PATIENCE_S, Served, served
from tests.reference.tiny_model import TinySpec, write_tiny

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def engine_of(one: Served) -> int:
    return child_of(one, b"worker.child")


def child_of(one: Served, module: bytes) -> int:
    (child,) = children_of(one.process.pid, module)
    return child


def children_of(pid: int, module: bytes) -> list[int]:
    """Children of a process, by a word of what they run."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _parent(path) == pid and module in _command(path)]


def _command(path: Path) -> bytes:
    try:
        return (path / "cmdline").read_bytes()
    except OSError:
        return b""


def _parent(path: Path) -> int:
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def gone(pid: int) -> bool:
    """Soon."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def health(one: Served) -> int:
    try:
        with urllib.request.urlopen(f"{one.url}/health", timeout=PATIENCE_S) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def until_ready(one: Served) -> None:
    end = time.monotonic() + PATIENCE_S
    while health(one) != 200:
        assert time.monotonic() < end
        time.sleep(0.02)


class Streaming(threading.Thread):
    """A client that reads a long stream; ``begun`` when its first event is there."""

    def __init__(self, one: Served, max_tokens: int = 4000) -> None:
        super().__init__()
        body = {"prompt": f"stream {id(self)}", "max_tokens": max_tokens, "stream": True, "n": 8, "temperature": 0.5}
        self._request = urllib.request.Request(f"{one.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        self.begun, self.text = threading.Event(), b""
        self.start()

    def run(self) -> None:
        try:
            with urllib.request.urlopen(self._request, timeout=PATIENCE_S) as reply:
                while part := reply.read1(65536):
                    self.text += part
                    self.begun.set()
        except OSError:
            pass
        except Exception as error:  # the body was broken off, as it should be after an error
            assert type(error).__name__ == "IncompleteRead", error


@pytest.mark.fault("D01")
def test_sigterm_refuses_new_work_at_once_and_finishes_what_runs() -> None:
    with served("--toy", "--drain-timeout", "300") as one:
        engine = engine_of(one)
        stream = Streaming(one, 1500)
        assert stream.begun.wait(PATIENCE_S)
        one.process.send_signal(signal.SIGTERM)
        while health_or_gone(one) == 200:
            time.sleep(0.005)
        stream.join(PATIENCE_S)
        assert stream.text.rstrip().endswith(b"data: [DONE]")
        assert one.process.wait(PATIENCE_S) == 0
        assert gone(engine)


def refusal(one: Served, path: str) -> tuple[int, str, dict[str, object]]:
    request = urllib.request.Request(f"{one.url}{path}", b'{"model": "toy", "prompt": "x"}', {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as caught, urllib.request.urlopen(request, timeout=PATIENCE_S):
        pass
    with caught.value as error:
        return error.code, error.headers.get("retry-after", ""), json.loads(error.read())


@pytest.mark.fault("D01", "D15")
def test_while_it_drains_health_says_so_and_every_dialect_refuses_in_its_own_words() -> None:
    """There is more to do than can be done meanwhile, so that the drain is not over too soon."""
    with served("--toy", "--drain-timeout", "300") as one:
        streams = [Streaming(one) for _ in range(60)]
        assert streams[0].begun.wait(PATIENCE_S)
        one.process.send_signal(signal.SIGTERM)
        while health(one) == 200:
            time.sleep(0.005)
        with pytest.raises(urllib.error.HTTPError) as caught, urllib.request.urlopen(f"{one.url}/health", timeout=PATIENCE_S):
            pass
        with caught.value as error:
            assert (error.code, json.loads(error.read())) == (503, {"status": "draining"})
            assert 1 <= int(error.headers["retry-after"]) <= 60
        paths = ("/v1", "/fireworks/inference/v1", "/together/v1", "/cerebras/v1", "/novita/openai/v1")
        refusals = [refusal(one, f"{path}/completions") for path in paths]
        one.process.send_signal(signal.SIGTERM)
        assert [status for status, *_ in refusals] == [503] * len(paths)
        assert all(1 <= int(retry) <= 60 for _, retry, _ in refusals)
        assert all("shutting down" in json.dumps(body) for *_, body in refusals)
        assert len({json.dumps(sorted(body)) for *_, body in refusals}) > 1, "the dialects' errors differ in form"
        assert one.process.wait(PATIENCE_S) == 0
        for stream in streams:
            stream.join(PATIENCE_S)


def health_or_gone(one: Served) -> int:
    try:
        return health(one)
    except OSError:
        return 0


@pytest.mark.fault("D02", "D03")
@pytest.mark.parametrize("how", ["timeout", "second", "sigint"])
def test_a_drain_that_is_cut_short_ends_within_seconds(how: str) -> None:
    """The engine stands still meanwhile, and holds nothing up. Before a second signal there is more to do than can be done."""
    with served("--toy", "--drain-timeout", "0.3" if how == "timeout" else "300") as one:
        engine = engine_of(one)
        streams = [Streaming(one) for _ in range(60 if how == "second" else 1)]
        assert streams[0].begun.wait(PATIENCE_S)
        if how == "second":
            one.process.send_signal(signal.SIGTERM)
            while health(one) == 200:  # else both signals may come as one
                time.sleep(0.005)
            assert one.process.poll() is None
        os.kill(engine, signal.SIGSTOP)
        one.process.send_signal(signal.SIGINT if how == "sigint" else signal.SIGTERM)
        assert one.process.wait(PATIENCE_S) == 0
        for stream in streams:
            stream.join(PATIENCE_S)
        assert gone(engine)
        assert any(b"The server stopped before the request was complete." in stream.text for stream in streams)
        assert re.search(r"[1-9]\d* choices? not done, and ended", one.process.communicate(timeout=PATIENCE_S)[1])


@pytest.mark.fault("D03")
@pytest.mark.parametrize("what", ["idle", "at work"])
def test_a_server_whose_engine_stands_still_ends_without_waiting_for_all_of_the_drain(what: str) -> None:
    with served("--toy", "--drain-timeout", "300") as one:
        engine = engine_of(one)
        if what == "at work":
            assert Streaming(one).begun.wait(PATIENCE_S)
        os.kill(engine, signal.SIGSTOP)
        assert one.end(signal.SIGTERM)[0] == 0
        assert gone(engine)


@pytest.mark.fault("D03")
def test_a_server_that_loads_ends_though_its_engine_says_nothing(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny"))
    command = [sys.executable, "-m", "quintet", "serve", "--port", "0", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            while not (engines := children_of(process.pid, b"worker.child")):
                time.sleep(0.001)
            os.kill(engines[0], signal.SIGSTOP)
            while not children_of(process.pid, b"watch.py"):  # the engine's process is there before the server's event loop
                time.sleep(0.001)
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=PATIENCE_S)
            assert (process.returncode, out) == (0, b"")
            assert gone(engines[0])
        finally:
            process.kill()


EARLY = """
import os, signal, sys
import quintet.cli

class Signals:
    def __init__(self, *plan): self.plan = dict(plan)
    def find_spec(self, name, *_):
        for number in self.plan.pop(name, ()): os.kill(os.getpid(), number)

{code}
quintet.cli.main()
"""
"""A server that sends itself signals when it comes to import a module."""

FIRST, LAST = "click", "uvloop"
"""What a server imports at the very beginning, and when its engines load."""


def ended_early(code: str) -> tuple[int, bytes, bytes]:
    done = subprocess.run([sys.executable, "-c", EARLY.format(code=code), "serve", "--toy", "--port", "0"], capture_output=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.fault("D03")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("when", [FIRST, LAST])
def test_a_signal_ends_a_server_cleanly_however_early_it_comes(number: str, when: str) -> None:
    assert ended_early(f"sys.meta_path.insert(0, Signals(('{when}', [signal.{number}])))") == (0, b"", b"")


def test_a_signal_that_comes_where_nothing_can_be_raised_ends_a_server_too() -> None:
    """Such as at the end of an import, whose lock has a callback."""
    code = """
class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(9): pass  # it is heard here

class Drops:
    def find_spec(self, name, *_):
        if name == "click": Dropped()

sys.meta_path.insert(0, Drops())
"""
    assert ended_early(code) == (0, b"", b"")


def test_a_reload_or_a_hand_over_that_is_asked_for_too_early_harms_nothing() -> None:
    plan = ", ".join(f"('{when}', [signal.SIGHUP, signal.SIGUSR2])" for when in (FIRST, LAST))
    with served("--toy", code=EARLY.format(code=f"sys.meta_path.insert(0, Signals({plan}))")) as one:
        assert one.post({"prompt": "x", "max_tokens": 1})[0] == 200
        assert one.end(signal.SIGTERM)[0] == 0


@pytest.mark.fault("C01", "E05")
def test_a_crash_breaks_streams_off_with_an_error_and_the_server_works_again() -> None:
    with served("--toy") as one:
        expected = json.loads(one.post({"prompt": "same", "max_tokens": 9, "temperature": 0})[1])["choices"]
        stream = Streaming(one)
        assert stream.begun.wait(PATIENCE_S)
        os.kill(engine_of(one), signal.SIGSEGV)
        stream.join(PATIENCE_S)
        assert b"data: [DONE]" not in stream.text
        assert b"The engine failed while it was working on this request." in stream.text.rpartition(b"data: ")[2]
        while health(one) != 200:
            time.sleep(0.02)
        assert json.loads(one.post({"prompt": "same", "max_tokens": 9, "temperature": 0})[1])["choices"] == expected


@pytest.mark.fault("D04")
def test_nothing_of_it_outlives_a_server_that_is_killed() -> None:
    with served("--toy") as one:
        engine = engine_of(one)
        stream = Streaming(one)
        assert stream.begun.wait(PATIENCE_S)
        one.process.kill()
        assert gone(engine)
        stream.join(PATIENCE_S)


@pytest.mark.fault("C02")
@pytest.mark.parametrize(
    ("spoil", "words"), [("missing", "no such file|does not exist|not found"), ("truncated", "truncated|damaged"), ("noise", "GGUF")]
)
def test_a_start_that_cannot_work_ends_with_one_line(tmp_path: Path, spoil: str, words: str) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny"))
    data = path.read_bytes()
    if spoil == "missing":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2] if spoil == "truncated" else b"noise" * 1000)
    command = [sys.executable, "-m", "quintet", "serve", "--port", "0", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"error: [^\n]*({words})[^\n]*\n", done.stderr, re.IGNORECASE)


@pytest.mark.fault("C02", "D05")
def test_too_little_memory_for_the_kv_cache_ends_the_start_with_one_line(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny"))
    command = [sys.executable, "-m", "quintet", "serve", "--port", "0", "--kv-cache", "4GiB", "--ctx-size", "32", str(path)]
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))  # noqa: E731
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, preexec_fn=limit)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: there is not enough memory for a KV cache of {4 << 30} bytes; lower --kv-cache.\n"


def test_a_stop_token_shows_no_text_though_its_bytes_are_known_on_this_side() -> None:
    """`stop_token_ids` may name any token; the engine's process sends ids, and the text is put to them here."""
    with served("--toy") as one:
        asked = {"prompt": "hello there", "max_tokens": 8, "temperature": 0}
        text = json.loads(one.post(asked)[1])["choices"][0]["text"]
        ended = json.loads(one.post(asked | {"stop_token_ids": [ord(text[2])]})[1])["choices"][0]
        assert (ended["text"], ended["finish_reason"]) == (text[: text.index(text[2])], "stop")


@pytest.mark.fault("D08")
def test_a_log_that_nobody_reads_holds_up_neither_answers_nor_the_end() -> None:
    command = [sys.executable, "-m", "quintet", "serve", "--toy", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = re.search(r"http://([\d.]+):(\d+)", process.stdout.readline())
            assert address
            connection = http.client.HTTPConnection(address[1], int(address[2]), timeout=PATIENCE_S)
            for _ in range(2000):  # lines of 150 bytes: far more than a pipe holds
                connection.request("GET", "/livez")
                assert connection.getresponse().read() == b'{"status":"alive"}'
            connection.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


@pytest.mark.fault("D08")
@pytest.mark.parametrize("reader", ["gone", "asleep"])
def test_a_banner_that_nobody_reads_holds_up_neither_the_start_nor_the_end(reader: str, tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(theirs, b"x" * 4096)
    os.set_blocking(theirs, True)
    if reader == "gone":
        os.close(ours)
    environment = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(PATIENCE_S)
        manager.bind(environment["NOTIFY_SOCKET"])
        with subprocess.Popen(
            [sys.executable, "-m", "quintet", "serve", "--toy", "--port", "0"], stdout=theirs, env=environment
        ) as process:
            os.close(theirs)
            try:
                assert manager.recv(100) == b"READY=1"
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE_S) == 0
            finally:
                process.kill()
    if reader == "asleep":
        os.close(ours)


@pytest.mark.fault("D08")
@pytest.mark.parametrize("closed", [[2], [0, 1, 2]])
def test_a_server_may_be_started_with_its_standard_streams_closed(closed: list[int], tmp_path: Path) -> None:
    path = tmp_path / "s"
    command = [sys.executable, "-m", "quintet", "serve", "--toy", "--no-batches", "--uds", str(path)]
    ways = " ".join(f"{number}>&-" for number in closed)
    with subprocess.Popen(["sh", "-c", f'exec "$@" {ways}', "sh", *command]) as process:
        until = time.monotonic() + PATIENCE_S
        while not path.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE_S)
            client.connect(str(path))
            client.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
        pids = process.pid, children_of(process.pid, b"worker.child")[0]
        streams = [str(Path(f"/proc/{pid}/fd/{number}").readlink()) for pid in pids for number in closed]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert set(streams) == {"/dev/null"}, "no socket has their numbers"
