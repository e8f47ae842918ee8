"""``quintet serve`` with several models: each in a process of its own, over real HTTP."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_serve_command import PATIENCE_S, Served, served
from tests.support import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SECOND = ("--alias", "text-davinci-003=second")


def engines(one: Served) -> list[int]:
    """The processes of the engines, in the order of their start, which is that of the models."""
    return sorted(processes.engines(one.process.pid), key=lambda process: (_started(process), process))


def _started(process: int) -> int:
    """The kernel's time of its start: the 20th field after the name."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def ask(one: Served, model: str, **more: Any) -> dict[str, Any]:
    status, body = one.post({"model": model, "prompt": "The sky is", "max_tokens": 24, "seed": 11, "logprobs": 2, **more})
    assert status == 200, body
    read: dict[str, Any] = json.loads(body)
    return read


def get(one: Served, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"{one.url}{path}", timeout=PATIENCE_S) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def post(one: Served, path: str, body: object, **headers: str) -> tuple[int, Any]:
    request = urllib.request.Request(f"{one.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


class Stream(threading.Thread):
    """Reads a stream to its end; ``begun`` at its first frame."""

    def __init__(self, one: Served, model: str, at: int, max_tokens: int) -> None:
        super().__init__()
        body = {"model": model, "prompt": f"Stream {at}:", "max_tokens": max_tokens, "stream": True, "seed": at, "ignore_eos": True}
        self._request = urllib.request.Request(f"{one.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        self.begun, self.data = threading.Event(), b""
        self.start()

    def run(self) -> None:
        try:
            with urllib.request.urlopen(self._request, timeout=PATIENCE_S) as reply:
                while part := reply.read1(65536):
                    self.data += part
                    self.begun.set()
        except Exception as error:  # broken off
            assert type(error).__name__ in ("IncompleteRead", "HTTPError"), error
        self.begun.set()

    @property
    def frames(self) -> list[bytes]:
        return [line[6:] for line in self.data.split(b"\n\n") if line.startswith(b"data: ")]

    @property
    def text(self) -> str:
        return "".join(choice["text"] for frame in self.frames[:-1] for choice in json.loads(frame)["choices"])

    @property
    def whole(self) -> bool:
        return self.frames[-1:] == [b"[DONE]"]


@pytest.fixture(params=["toy", "smollm2"])
def model(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_equal_models_give_equal_bytes_and_the_death_of_one_leaves_the_others_streams_untouched(model: str) -> None:
    """Issue 11: ``serve smollm2 second=smollm2 --alias text-davinci-003=second``."""
    tokens, sizes = (1000, ()) if model == "toy" else (60, ("--kv-cache", "512MiB"))
    with served(model, f"second={model}", *SECOND, *sizes) as one:
        answers = [ask(one, name) for name in ("", "second", "text-davinci-003")]
        assert [answer["model"] for answer in answers] == [model, "second", "text-davinci-003"]
        assert answers[0]["choices"] == answers[1]["choices"] == answers[2]["choices"]
        alone = Stream(one, model, 0, tokens)
        alone.join(PATIENCE_S)
        assert alone.whole
        _, victim = engines(one)
        streams = [Stream(one, name, 0, most) for name, most in ((model, tokens), ("second", 4000), (model, tokens))]
        assert all(stream.begun.wait(PATIENCE_S) for stream in streams)
        os.kill(victim, signal.SIGKILL)
        for stream in streams:
            stream.join(PATIENCE_S)
        assert [stream.whole for stream in streams] == [True, False, True]
        assert streams[0].text == streams[2].text == alone.text
        assert b'"error"' in streams[1].frames[-1]
        until_health(one, 200)
        assert victim not in engines(one)
        assert ask(one, "second")["choices"] == answers[0]["choices"], "it is started again"


def until_health(one: Served, status: int) -> None:
    for _ in range(int(PATIENCE_S / 0.02)):
        if get(one, "/health")[0] == status:
            return
        time.sleep(0.02)
    raise AssertionError(get(one, "/health"))


@pytest.mark.fault("D13")
def test_a_lazy_model_is_loaded_by_its_first_request_and_freed_when_idle_and_a_pinned_one_stays() -> None:
    with served("toy", "second=toy", "third=toy", "--lazy", "--pin", "third", "--idle-unload", "0.3s") as one:
        assert "toy (context 4096, loaded when it is asked for)" in one.banner
        assert len(engines(one)) == 1
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answers = list(pool.map(lambda _: ask(one, "second"), range(3)))
        assert answers[0]["choices"] == answers[1]["choices"] == answers[2]["choices"]
        deadline = time.monotonic() + PATIENCE_S
        while (states := get(one, "/health/models")[1]["models"])["second"] != "unloaded" and time.monotonic() < deadline:
            time.sleep(0.02)
        assert states == {"toy": "unloaded", "second": "unloaded", "third": "ready"}
        assert len(engines(one)) == 1
        assert ask(one, "second")["choices"] == answers[0]["choices"]


def test_the_admin_key_loads_and_unloads_and_the_end_ends_all_engines() -> None:
    with served("toy", "second=toy", QUINTET_ADMIN_KEY="admin") as one:
        admin = {"Authorization": "Bearer admin"}
        assert post(one, "/v1/models/unload", {"model": "second"})[0] == 401
        assert post(one, "/v1/models/unload", {"model": "second"}, **admin) == (200, {"model": "second", "status": "unloaded"})
        assert len(engines(one)) == 1
        assert get(one, "/health") == (200, {"status": "ok"})
        assert post(one, "/v1/models/load", {"model": "second"}, **admin) == (200, {"model": "second", "status": "ready"})
        left = engines(one)
        assert len(left) == 2
        assert one.end(signal.SIGTERM)[0] == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in left)
