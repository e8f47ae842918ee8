"""``--log-format``: every line that a server and its engine write has the form, whatever happens."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys

from tests.e2e.test_serve_command import PATIENCE_S, Served, served
from tests.e2e.test_serve_process import Streaming, engine_of, until_ready


def eventful(one: Served) -> str:
    """Requests good and bad, a crash in the middle of one; what was written."""
    one.post({"prompt": "x", "max_tokens": 2}, **{"x-request-id": "good"})
    one.post({"prompt": "x", "n": 0}, **{"x-request-id": "bad"})
    stream = Streaming(one)
    assert stream.begun.wait(PATIENCE_S)
    os.kill(engine_of(one), signal.SIGSEGV)
    stream.join(PATIENCE_S)
    until_ready(one)
    return one.end(signal.SIGTERM)[1]


def test_json_is_an_object_a_line_and_what_is_written_to_no_terminal() -> None:
    with served("--toy", "--log-level", "debug") as one:
        lines = [json.loads(line) for line in eventful(one).splitlines()]
    assert all(line.keys() >= {"time", "level", "logger"} for line in lines)
    assert {"error", "info", "debug"} <= {line["level"] for line in lines}
    accesses = {line["request_id"]: line for line in lines if line["logger"] == "quintet.access"}
    assert accesses["good"]["status"] == 200 and accesses["bad"]["refused"] == "invalid_request"
    (crash,) = (line for line in lines if line["level"] == "error")
    assert crash["logger"].startswith("quintet.backends") and "started again" in crash["message"]


def test_text_is_a_line_of_words_for_all_of_it() -> None:
    with served("--toy", "--log-format", "text") as one:
        lines = eventful(one).splitlines()
    form = re.compile(r"\d{4}-\d\d-\d\dT[\d:.+]+ (INFO|WARNING|ERROR) [\w.]+: .+")
    assert [line for line in lines if not form.fullmatch(line)] == []
    (good,) = (line for line in lines if "request_id=good" in line)
    assert "quintet.access: method=POST handler=/completions status=200" in good


def test_a_terminal_gets_text() -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "quintet", "serve", "--toy", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=slave) as process:
        os.close(slave)
        assert process.stdout is not None
        url = re.search(rb"http://\S+(?=/v1)", process.stdout.readline())
        assert url is not None
        subprocess.run([sys.executable, "-c", f"import urllib.request as u; u.urlopen({url[0].decode() + '/health'!r}).read()"], check=True)
        said = os.read(master, 4096)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    os.close(master)
    assert b"quintet.access: method=GET handler=/health status=200" in said
