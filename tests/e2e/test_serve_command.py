"""``quintet serve`` as a process: what it prints, how it ends, who gets in."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.reference.tiny_model import TinySpec, write_tiny

PATIENCE_S = 120
"""For a busy test machine; nothing is expected to take so long."""


class Served:
    """A running ``quintet serve`` and its one-line banner.

    Args:
        code: Python that runs the command, in place of the module.
    """

    def __init__(self, *words: str, code: str = "", **environment: str) -> None:
        command = [sys.executable, *(("-c", code) if code else ("-m", "quintet")), "serve", "--port", "0", *words]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}, start_new_session=True
        )
        assert self.process.stdout is not None
        self.banner = self.process.stdout.readline()
        found = re.search(r"http://\S+(?=/v1)", self.banner)
        self.url = found[0] if found else ""

    def post(self, body: object, **headers: str) -> tuple[int, bytes]:
        headers["Content-Type"] = "application/json"
        return self.send("/v1/completions", json.dumps(body).encode(), headers)

    def send(self, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        """POST a body, or GET without one; the status and what came."""
        request = urllib.request.Request(f"{self.url}{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def end(self, number: int) -> tuple[int, str]:
        """Send a signal; exit code and everything on stderr."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, err


@contextlib.contextmanager
def served(*words: str, code: str = "", **environment: str) -> Iterator[Served]:
    one = Served(*words, code=code, **environment)
    try:
        yield one
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.communicate()


@pytest.mark.fault("D03")
def test_it_serves_tells_where_and_ends_cleanly_on_either_signal() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with served("--toy") as one:
            assert one.banner.startswith("quintet 0.1.0: toy (context 4096) at http://127.0.0.1:")
            status, body = one.post({"prompt": "The sky is", "max_tokens": 4, "temperature": 0})
            assert (status, json.loads(body)["usage"]["completion_tokens"]) == (200, 4)
            code, err = one.end(number)
            assert (code, [json.loads(line)["completion_tokens"] for line in err.splitlines()]) == (0, [4])  # the access log alone
            with pytest.raises(ProcessLookupError):  # nothing of its session is left
                os.killpg(one.process.pid, 0)


@pytest.mark.fault("D02")
def test_a_signal_ends_running_streams_with_a_last_word_and_frees_the_port() -> None:
    with served("--toy") as one:
        host, port = one.url.removeprefix("http://").split(":")
        body = json.dumps({"prompt": "x", "max_tokens": 4000, "n": 16, "stream": True, "logit_bias": {}}).encode()
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
            head = (
                f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            client.sendall(head.encode() + body)
            answer = client.recv(4096)
            assert b"200 OK" in answer
            started = time.monotonic()
            one.process.send_signal(signal.SIGINT)
            while part := client.recv(1 << 20):
                answer += part
            assert b"The server stopped before the request was complete." in answer or b"data: [DONE]" in answer
        one.process.wait(PATIENCE_S)
        assert one.process.returncode in (0, 130)
        assert time.monotonic() - started < PATIENCE_S
        with socket.create_server((host, int(port))):
            pass


@pytest.mark.fault("C02")
def test_a_busy_port_ends_the_second_server_with_one_line() -> None:
    with served("--toy") as one:
        port = one.url.rpartition(":")[2]
        command = [sys.executable, "-m", "quintet", "serve", "--toy", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(rf"error: port {port} on 127\.0\.0\.1 is in use by another program; [^\n]*\n", done.stderr)
        assert one.post({"prompt": "x", "max_tokens": 1})[0] == 200


def test_keys_from_options_and_environment_are_asked_for() -> None:
    body = {"prompt": "x", "max_tokens": 1}
    with served("--toy", "--api-key", "one", "--api-key", "two") as one:
        assert "2 API keys" in one.banner
        assert one.post(body)[0] == 401
        assert one.post(body, Authorization="Bearer three")[0] == 401
        assert one.post(body, Authorization="Bearer two")[0] == 200
    with served("--toy", QUINTET_API_KEY="three") as one:
        assert "1 API key" in one.banner
        assert one.post(body)[0] == 401
        assert one.post(body, Authorization="Bearer three")[0] == 200


def test_a_real_model_is_served_under_the_names_given(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny"))
    with served(str(path), "--served-model-name", "a/b", "-a", "c", "--threads", "1", "--ctx-size", "32", "--kv-cache", "1MiB") as one:
        assert one.banner.startswith("quintet 0.1.0: a/b (")
        assert "context 32 of " in one.banner
        assert ", 1 thread, KV cache 1.0 MB for " in one.banner
        for name in ("a/b", "c"):
            status, body = one.post({"model": name, "prompt": "Hello", "max_tokens": 2, "temperature": 0})
            assert (status, json.loads(body)["model"]) == (200, name)
        assert one.post({"model": "tiny", "prompt": "Hello"})[0] == 404
        assert one.post({"model": "c", "prompt": "Hello " * 40})[0] == 400


def test_ctrl_c_ends_a_run_with_its_figures(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny", context=1 << 16))
    command = [sys.executable, "-m", "quintet", "run", str(path), "Hello", "--max-tokens", "60000", "--seed", "1"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert re.fullmatch(rb"\d+ prompt tokens, \d+ generated, first after [^\n]*, seed 1\n", err)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("key", [(), ("--api-key", "secret")])
def test_the_curl_of_the_banner_works_when_pasted(key: tuple[str, ...]) -> None:
    """On a terminal the banner is a block; its command runs as it is, with the key in the environment variable it names."""
    leader, terminal = pty.openpty()
    command = [sys.executable, "-m", "quintet", "serve", "--toy", "--port", "0", *key]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=subprocess.DEVNULL)
    os.close(terminal)
    try:
        text = ""
        while "Ctrl-C stops." not in text:
            text += os.read(leader, 4096).decode()
        pasted = re.search(r"curl .*?'(?=\s+Ctrl-C)", text.replace("\r\n", "\n"), re.DOTALL)
        assert pasted
        shell = ["sh", "-c", pasted[0].replace("curl", "curl -s", 1)]
        done = subprocess.run(shell, capture_output=True, env={**os.environ, "QUINTET_API_KEY": "secret"}, check=True)
        assert json.loads(done.stdout)["usage"]["completion_tokens"] > 0
        assert "secret" not in text
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        os.close(leader)


@pytest.mark.fault("D15")
def test_health_says_loading_until_the_model_is_there(tmp_path: Path) -> None:
    """A loader held up by a pipe: the server answers meanwhile, and prints its banner only afterwards."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    child = f"""
from quintet.backends.native.worker import child
def slow(source, table):
    load = child.loader_of(source, table)
    def held(progress):
        progress(0.25)
        open({str(gate)!r}).read()
        return load(progress)
    return held
child.main(slow)
"""
    code = f"""
import functools, sys
from quintet.cli import main, plans
plans.ProcessLink = functools.partial(plans.ProcessLink, module=("-c", {child!r}))
sys.argv = ["quintet", "serve", "--toy", "--port", sys.argv[1]]
main()
"""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", code, str(port)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.append(process.stdout.readline()))  # type: ignore[union-attr]
        reader.start()
        answers = {None, (503, "loading", 0.0)}  # not up yet; up, and the loader's report still on its way
        while (answer := _health(port)) in answers and process.poll() is None:
            time.sleep(0.05)
        assert answer == (503, "loading", 0.25)
        assert lines == []
        gate.write_text("open")
        reader.join(PATIENCE_S)
        assert lines[0].startswith("quintet 0.1.0: toy")
        assert _health(port) == (200, "ok", 1.0)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def _health(port: int) -> tuple[int, str, float] | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=PATIENCE_S) as reply:
            status, body = reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            status, body = error.code, json.loads(error.read())
    except urllib.error.URLError:
        return None
    return status, body["status"], body.get("progress", 1.0)
