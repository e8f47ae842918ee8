"""``quintet top`` as a command, on a real server: once, as lines, on a terminal; its server goes away and comes back."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from rich.console import Console
from tests.e2e.test_serve_command import PATIENCE_S, Served, served
from tests.support.command import Done, command

from quintet.cli.scrape import Look
from quintet.cli.top import shown

KEY = "key-of-the-watch"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("--toy", "--api-key", KEY, "--admin-key", "key-of-the-admin") as found:
        yield found


def top(*words: str, key: str = "") -> Done:
    return command("top", *words, *(("--key", key) if key else ()))


def test_a_look_tells_what_goes_on(server: Served) -> None:
    done = threading.Event()

    def traffic() -> None:
        while not done.is_set():
            server.post({"prompt": "The sky is", "max_tokens": 200, "ignore_eos": True}, Authorization=f"Bearer {KEY}")

    client = threading.Thread(target=traffic)
    client.start()
    try:
        run = top(server.url, "--once", "--json", key="key-of-the-admin")
    finally:
        done.set()
        client.join()
    assert (run.returncode, run.stderr) == (0, "")
    seen = json.loads(run.stdout)
    model = seen["models"]["toy"]
    assert model["ready"] and model["loaded"]
    assert model["generated_per_s"] > 0 and model["ttft_p50_s"] > 0 and model["engine_memory_bytes"] > 1 << 20
    assert seen["server"]["answers_per_s"]["2xx"] > 0


@pytest.mark.parametrize("path", ["", "/v1", "/v1/completions", "/metrics"])
def test_any_url_of_the_server_will_do_and_a_table_is_for_people(server: Served, path: str) -> None:
    run = top(f"{server.url}{path}", "--once", "--interval", "0.1", key="key-of-the-admin")
    assert (run.returncode, run.stderr) == (0, "")
    assert "Quintet 0.1.0" in run.stdout and "\x1b" not in run.stdout
    assert any(line.split()[:2] == ["toy", "ready"] for line in run.stdout.splitlines())


@pytest.mark.parametrize(
    ("path", "key", "words"),
    [("", "", "give a key of scope metrics"), ("", KEY, "give a key of scope metrics"), ("/nowhere/metrics", KEY, "is not there")],
)
def test_a_server_that_will_not_tell_is_an_error_in_one_line(server: Served, path: str, key: str, words: str) -> None:
    run = top(f"{server.url}{path}", "--once", key=key)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (1, "", 1)
    assert words in run.stderr and "key-of" not in run.stderr


def test_nobody_there_is_an_error_when_it_is_to_look_once() -> None:
    run = top("http://127.0.0.1:9", "--once")
    assert (run.returncode, run.stdout) == (1, "")
    assert "the connection failed: Connection refused" in run.stderr


class Page(BaseHTTPRequestHandler):
    """Metrics in vLLM's words, or none, as the server has it."""

    page = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name='m'} 1\n".replace(b"'", b'"')
    status = 200

    def do_GET(self) -> None:
        self.send_response(Page.status)
        self.send_header("content-length", str(len(self.page)))
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *_: object) -> None: ...


def told(model: str) -> Look:
    """Of a busy server, the widest of numbers."""
    rates = {"choices_per_s": 1234.5, "generated_per_s": 12345.6, "prompt_per_s": 1234567.8, "engine_cpus": 31.99}
    times = dict.fromkeys(("ttft_p50_s", "ttft_p95_s", "gap_p50_s", "gap_p95_s"), 12.345)
    rest = {"ready": True, "loaded": True, "running": 512, "waiting": 4096, "kv_cache_used": 1.0, "cache_hits": 1.0}
    server = dict.fromkeys(("version", "cpus", "memory_bytes", "machine_memory_used"))
    front: dict[str, Any] = {**server, "answers_per_s": {}, "refused_per_s": {}, "left_per_s": 0}
    return Look(front, {model: {**rest, **rates, **times, "engine_memory_bytes": 1e11}})


@pytest.mark.parametrize("width", [80, 100, 140, 200])
@pytest.mark.parametrize("model", ["toy", "Qwen2.5-Coder-32B-Instruct-abliterated-Q4_K_M"])
def test_no_number_is_cut_off_on_a_terminal_of_the_usual_width(width: int, model: str) -> None:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(shown(told(model), "http://127.0.0.1:8000"))
    text = capture.get()
    assert "…" not in text and all(len(line) <= width for line in text.splitlines())
    for word in ("tokens/s", "12,345.6", "1,234,567.8", "4096", "12,345 ms", "100%", "31.99", "100.0 GB", "memory"):
        assert word in text
    assert (text.count("model ") == 1) == (width == 200)
    name = "".join(line[:16].strip() for line in text.splitlines() if line[:16].strip() in model)
    assert model in text or model in name


@pytest.mark.parametrize("name", ["a[b]", ":fire:", "x[/y]", "[red]m[/]", "m\x1b]0;hi\x07", "m\nn"])
def test_names_and_versions_are_shown_as_they_are_but_for_what_a_terminal_would_heed(name: str) -> None:
    look = told(name)
    look.server["version"] = f"1{name}"
    console = Console(width=400, force_terminal=True, no_color=True)
    with console.capture() as capture:
        console.print(shown(look, "http://127.0.0.1:8000"))
    printable = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in name)
    text = capture.get()
    assert f"Quintet 1{printable} " in text and any(line.startswith(f"{printable} ") for line in text.splitlines())
    assert "\x1b]" not in text and "\x07" not in text


@contextlib.contextmanager
def watched(*words: str) -> Iterator[subprocess.Popen[str]]:
    """The command that looks ten times a second, with its output piped."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        command = [sys.executable, "-m", "quintet", "top", f"http://127.0.0.1:{web.server_port}", "--interval", "0.1", *words]
        own = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=own, text=True) as process:
            try:
                yield process
            finally:
                process.kill()
        web.shutdown()


def test_in_a_pipe_each_look_is_a_block_of_lines_as_soon_as_it_is_taken() -> None:
    with watched() as process:
        assert process.stdout is not None
        for _ in range(2):
            block = "".join(iter(process.stdout.readline, "\n")) + "".join(iter(process.stdout.readline, "\n"))
            assert block.startswith("http://127.0.0.1:") and "running" in block and "\x1b" not in block
            assert block.splitlines()[-1].split()[:3] == ["m", "-", "1"]
        process.terminate()
        assert process.wait(PATIENCE_S) == -signal.SIGTERM


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_reader_that_has_gone_ends_it_and_is_told_nothing(words: list[str]) -> None:
    with watched(*words) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert (process.wait(PATIENCE_S), process.stderr.read()) == (1, "")


def until(master: int, words: str, shown: bytearray) -> None:
    """Read a terminal until it shows these words."""
    end = time.monotonic() + PATIENCE_S
    while words.encode() not in shown:
        assert time.monotonic() < end, shown[-2000:]
        shown += os.read(master, 65536)


def test_on_a_terminal_it_waits_for_a_server_that_went_away_and_leaves_on_ctrl_c() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        master, slave = pty.openpty()
        command = [sys.executable, "-m", "quintet", "top", f"http://127.0.0.1:{web.server_port}", "--interval", "0.1"]
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "140", "LINES": "30"}
        with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True) as process:
            os.close(slave)
            try:
                shown = bytearray()
                until(master, "m", shown)
                until(master, "running", shown)
                Page.status = 503
                until(master, "waiting for it", shown)
                Page.status = 200
                shown.clear()
                until(master, "running", shown)
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(OSError):  # the terminal is closed when it has gone
                    while part := os.read(master, 65536):
                        shown += part
                assert process.wait(PATIENCE_S) == 0
                assert b"Traceback" not in shown
                assert b"\x1b[?1049l" in shown, "the terminal is as it was"
            finally:
                Page.status = 200
                process.kill()
                os.close(master)
        web.shutdown()
