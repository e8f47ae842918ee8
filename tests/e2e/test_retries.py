"""Clients that give up sooner than they are served, and come again: what they leave behind is dropped, and who waits is answered."""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time

import pytest
from tests.e2e.test_cancels import until_idle
from tests.e2e.test_serve_command import PATIENCE_S, Served, served

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CLIENTS = 24
HASTY = 4
"""Tries that are given up before there is an answer; the next one waits for it."""


class Client(threading.Thread):
    """Asks for the same thing again and again; ``answer`` is what it got at last, ``refusals`` the heads of those that sent it away."""

    def __init__(self, one: Served, number: int) -> None:
        super().__init__()
        self._host, _, port = one.url.removeprefix("http://").partition(":")
        self._port = int(port)
        asked = {"prompt": f"client {number} asks at length, and again: " * 20, "max_tokens": 200, "ignore_eos": True, "seed": number}
        self._body = json.dumps(asked)
        self.answer: dict[str, object] = {}
        self.refusals: list[str | None] = []
        self.start()

    def run(self) -> None:
        for _ in range(HASTY):
            self._ask(0.05)
        while not self.answer:
            self._ask(PATIENCE_S)

    def _ask(self, patience: float) -> None:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=patience)
        try:
            connection.request("POST", "/v1/completions", self._body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            body = reply.read()
        except OSError:
            return
        finally:
            connection.close()
        if reply.status == 200:
            self.answer = json.loads(body)
        else:
            assert reply.status == 503
            self.refusals.append(reply.getheader("retry-after"))
            time.sleep(0.1)


@pytest.mark.fault("E10")
def test_a_storm_of_retries_leaves_no_work_behind_and_everybody_is_answered() -> None:
    with served("--toy", "--log-level", "error", "--max-waiting", "8") as one:
        clients = [Client(one, number) for number in range(CLIENTS)]
        for client in clients:
            client.join(PATIENCE_S)
        until_idle(one)
    assert [client.answer["usage"]["completion_tokens"] for client in clients if client.answer] == [200] * CLIENTS  # type: ignore[index]
    assert all(after is not None and int(after) >= 1 for client in clients for after in client.refusals)
