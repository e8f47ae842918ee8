"""Requests with a nonce each: whatever is killed, preempted or cancelled meanwhile, no answer has another's. ``make nightly``: 100,000."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import secrets
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.e2e.test_serve_command import PATIENCE_S, Served, served
from tests.e2e.test_serve_process import until_ready
from tests.reference.tiny_model import TinySpec, write_tiny
from tests.support.processes import engines

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

NONCES = int(os.environ.get("QUINTET_TEST_NONCES", "300"))
KILLS = 6 + NONCES // 2000
"""An engine that dies often is started again only after a pause, of 30 s in the end."""
CLIENTS = 12
NONCE = re.compile(rb"n[0-9a-f]{16}n")


def body(nonce: str, rng: random.Random) -> tuple[str, dict[str, object]]:
    """A path and a request in which the nonce is in the prompt, a stop, a bias of samples or a schema."""
    asked: dict[str, object] = {"prompt": f"{nonce} says", "max_tokens": rng.choice((4, 30)), "seed": rng.randrange(99), "echo": True}
    schema = {"type": "object", "properties": {nonce: {"type": "integer"}}, "required": [nonce], "additionalProperties": False}
    return rng.choice(
        (
            ("/v1", asked),
            ("/v1", asked | {"stream": True, "n": 2}),
            ("/v1", asked | {"logprobs": 3, "user": nonce, "stop": nonce}),
            ("/v1", asked | {"prompt": [f"{nonce} 1", f"{nonce} 2"], "best_of": 3}),
            ("/fireworks/inference/v1", asked | {"response_format": {"type": "json_schema", "schema": schema}, "max_tokens": 60}),
            ("/fireworks/inference/v1", asked | {"stream": True, "logprobs": 2, "echo_last": 25}),
            ("/together/v1", asked | {"logprobs": 1}),
            ("/v1", asked | {"n": nonce}),
            ("/v1", asked | {"model": nonce}),
        )
    )


class Client(threading.Thread):
    """Sends one request after another; ``seen`` counts how they ended, ``wrong`` holds answers with nonces of others."""

    def __init__(self, one: Served, number: int, count: int) -> None:
        super().__init__()
        self._host, _, port = one.url.removeprefix("http://").partition(":")
        self._port, self._count, self._rng = int(port), count, random.Random(number)
        self.seen: Counter[str] = Counter()
        self.wrong: list[bytes] = []
        self.start()

    def run(self) -> None:
        for _ in range(self._count):
            nonce = f"n{secrets.token_hex(8)}n"
            asked, status = body(nonce, self._rng), 503
            while status == 503:  # while the engine is started again
                status, answer = self._answer(*asked)
            found = set(NONCE.findall(answer))
            self.seen["whole" if nonce.encode() in found else "without"] += 1
            if found - {nonce.encode()}:
                self.wrong.append(answer)

    def _answer(self, path: str, asked: dict[str, object]) -> tuple[int, bytes]:
        """Status, and head and body as far as they came."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=PATIENCE_S)
        status, answer = 0, b""
        try:
            connection.request("POST", f"{path}/completions", json.dumps(asked), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            status, answer = reply.status, str(reply.getheaders()).encode()
            if status == 503:
                time.sleep(0.1)
            elif self._rng.random() < 0.1:
                return status, answer + reply.read(50)  # leaves in the middle
            while part := reply.read1():
                answer += part
        except (OSError, http.client.HTTPException):
            self.seen["broken"] += 1
        finally:
            connection.close()
        return status, answer


@pytest.mark.fault("G06", "C12")
def test_no_answer_has_a_nonce_of_another_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The cache holds a few sequences, so that they are preempted; the engine is killed again and again; one in ten clients leaves."""
    model = write_tiny(tmp_path / "tiny.gguf", TinySpec("tiny"))
    with served(str(model), "--log-level", "error", "--ctx-size", "256", "--kv-cache", "128KiB") as one:
        clients = [Client(one, number, NONCES // CLIENTS) for number in range(CLIENTS)]
        kills = 0
        while any(client.is_alive() for client in clients) and kills < KILLS:
            time.sleep(0.5)
            until_ready(one)
            for engine in engines(one.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(engine, signal.SIGKILL)
                    kills += 1
        for client in clients:
            client.join()
    seen = sum((client.seen for client in clients), Counter[str]())
    assert [answer for client in clients for answer in client.wrong] == []
    assert seen["whole"] > NONCES / 3
    with capsys.disabled():
        print(f" {NONCES // CLIENTS * CLIENTS} requests, {kills} kills, {dict(seen)}", end="")
