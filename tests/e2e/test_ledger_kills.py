"""Clients that write down what they saw, servers and engines that are killed, and a checker that compares it with the ledger.

``make test-ledger`` kills a hundred times of each.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_serve_command import PATIENCE_S, Served, served
from tests.e2e.test_serve_process import engine_of, until_ready
from tests.ledger.files import rows_in

from quintet.backends.toy import EOS
from quintet.ledger.rows import Row, State
from quintet.ledger.store import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

KILLS = int(os.environ.get("QUINTET_TEST_LEDGER_KILLS", "2"))
CLIENTS, LONG = 8, 400
SENDS = {"Content-Type": "application/json"}


@dataclass
class Seen:
    """What a client knows of one request.

    Args:
        id: of the answer; empty = nothing of it came.
        tokens: of the completion: told at the end, or counted in what came.
        whole: the answer came to its end.
        refused: the server said that it does not take it.
    """

    id: str = ""
    tokens: int = 0
    whole: bool = False
    refused: bool = False


@dataclass(eq=False)
class Client(threading.Thread):
    """Asks without a pause, in all ways, leaves now and then, and writes down what it saw."""

    port: int
    seed: int
    stop: threading.Event
    history: list[Seen] = field(default_factory=list)
    reads_on: bool = False  # in a long stream that it does not leave

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._rng = random.Random(self.seed)

    def run(self) -> None:
        while not self.stop.is_set():
            seen = Seen()
            try:
                self._ask(seen)
            except (OSError, http.client.HTTPException, ValueError):
                time.sleep(0.01)
            self.reads_on = False
            self.history.append(seen)

    def _ask(self, seen: Seen) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            most = self._rng.choice((1, 5, 40, LONG))
            stream = self._rng.random() < 0.6
            body: dict[str, Any] = {"prompt": f"client {self.seed}", "max_tokens": most, "stream": stream, "logit_bias": {str(EOS): -100}}
            body |= {"n": 1} if stream else {"n": self._rng.choice((1, 3))}
            body |= {"stream_options": {"include_usage": True}} if stream else {}
            try:
                connection.request("POST", "/v1/completions", json.dumps(body), SENDS)
            except OSError:
                seen.refused = True  # nobody has read it
                raise
            reply = connection.getresponse()
            if reply.status != 200:
                seen.refused = reply.status in (429, 503)
                reply.read()
            elif stream:
                leaves = self._rng.random() < 0.2
                self._read(reply, seen, leaves=leaves, long=most == LONG and not leaves)
            else:
                answer = json.loads(reply.read())
                seen.id, seen.tokens, seen.whole = answer["id"], answer["usage"]["completion_tokens"], True

    def _read(self, reply: http.client.HTTPResponse, seen: Seen, *, leaves: bool, long: bool) -> None:
        for line in reply:
            if line == b"data: [DONE]\n":
                seen.whole = True
            elif line.startswith(b"data: "):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    return
                seen.id, self.reads_on = chunk["id"], long
                seen.tokens = chunk["usage"]["completion_tokens"] if chunk.get("usage") else seen.tokens
                if leaves and self._rng.random() < 0.2:
                    return


def check(rows: list[Row], history: list[Seen]) -> None:
    """Every answer has exactly one row, what is refused has none, and what nobody knows of has one at most."""
    by_id = Counter(f"cmpl-{row.id}" for row in rows)
    assert set(by_id.values()) <= {1}
    found = {f"cmpl-{row.id}": row for row in rows}
    answered = [seen for seen in history if seen.id]
    assert len({seen.id for seen in answered}) == len(answered)
    for seen in answered:
        row = found.pop(seen.id)
        assert row.state is not State.OPEN
        if row.state is State.COMPLETED:
            assert seen.tokens in (0, row.completion)
        elif seen.whole:
            assert row.state is State.INCOMPLETE, "only who is killed right after the last byte does not know of it"
            assert row.completion <= seen.tokens
    unknown = [seen for seen in history if not seen.id and not seen.refused]
    assert len(found) <= len(unknown)


@contextlib.contextmanager
def on(port: int, file: Path) -> Iterator[Served]:
    with served("--toy", "--ledger", str(file), "--log-level", "error", "--port", str(port)) as one:
        yield one


def until_one_reads(clients: list[Client]) -> None:
    """One of them is in a stream that goes on."""
    end = time.monotonic() + PATIENCE_S
    while not any(client.reads_on for client in clients):
        assert time.monotonic() < end
        time.sleep(0.001)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.fault("J01", "D04")
def test_whatever_is_killed_every_answer_has_one_row_and_no_refusal_has_any(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(5)
    file, port, stop = tmp_path / "usage.db", free_port(), threading.Event()
    clients = [Client(port, number, stop) for number in range(CLIENTS)]
    for kill in range(KILLS):
        with on(port, file) as one:
            assert one.url, "it starts over what the last one left"
            for client in clients if kill == 0 else ():
                client.start()
            time.sleep(rng.uniform(0.1, 0.8))
            os.kill(engine_of(one), signal.SIGKILL)
            until_ready(one)
            time.sleep(rng.uniform(0.1, 0.8))
            until_one_reads(clients)
            one.process.kill()  # and the engine with it
            one.process.wait()
    with on(port, file) as one:
        stop.set()
        for client in clients:
            client.join(PATIENCE_S)
            assert not client.is_alive()
        one.end(signal.SIGTERM)
    rows = [row for row in rows_in(file).values() if row]
    history = [seen for client in clients for seen in client.history]
    states = Counter(row.state.value for row in rows)
    with capsys.disabled():
        print(f" {KILLS} kills of each, {len(history)} requests, {len(rows)} rows: {dict(states)}", end="")
    check(rows, history)
    assert {"completed", "cancelled", "incomplete"} <= set(states)


def test_the_checker_finds_what_is_wrong() -> None:
    row = Row(1, "a", "", "toy", "openai", 1, 0.0, completion=3, state=State.COMPLETED)
    seen = Seen("cmpl-a", 3, whole=True)
    check([row], [seen])
    for rows, history in (
        ([], [seen]),
        ([row, row._replace(number=2)], [seen]),
        ([row._replace(completion=2)], [seen]),
        ([row._replace(state=State.OPEN)], [seen]),
        ([row._replace(state=State.FAILED)], [seen]),
        ([row, row._replace(number=2, id="b")], [seen, Seen(refused=True)]),
    ):
        with pytest.raises((AssertionError, KeyError)):
            check(rows, history)


POINTS = ("before its first byte", "at its first byte", "with its counts noted", "after its last byte", "when its row is closed")


@pytest.mark.fault("J02")
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_between_a_token_and_its_row_leaves_the_row_with_what_was_noted(tmp_path: Path, point: str) -> None:
    """Streams of all lengths are under way; the server dies when one is at the point."""
    file = tmp_path / "usage.db"
    with on(0, file) as one:
        host, port = one.url.removeprefix("http://").split(":")
        most = 3 if point in POINTS[3:] else 4000
        body = json.dumps({"prompt": "abcd", "max_tokens": most, "stream": True, "logit_bias": {str(EOS): -100}}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        clients = [socket.create_connection((host, int(port)), timeout=PATIENCE_S) for _ in range(10)]
        for client in clients:
            client.sendall(head.encode() + body)
        noted = 0
        if point == POINTS[0]:
            until_rows(file, lambda row: True)
        elif point == POINTS[1]:
            clients[0].recv(1)
        elif point == POINTS[2]:
            noted = until_rows(file, lambda row: row.completion > 0).completion
        else:
            read = b""
            while b"[DONE]" not in read:
                read += clients[0].recv(65536)
            if point == POINTS[4]:
                until_rows(file, lambda row: row.state is not State.OPEN)
        one.process.kill()
        one.process.wait()
        got = [received(client) for client in clients]
    store = Store(file)
    store.begin(0.0)
    store.bury()
    store.close()
    rows = {row.id: row for row in rows_in(file).values() if row}
    assert {row.state for row in rows.values()} <= {State.INCOMPLETE, State.COMPLETED}
    assert max(row.completion for row in rows.values()) >= noted
    for text in filter(None, got):
        (name,) = {json.loads(line[6:])["id"] for line in text.splitlines() if line.startswith('data: {"id"') and line.endswith("}")}
        assert rows[name.removeprefix("cmpl-")].completion <= most
    if point == POINTS[4]:
        assert State.COMPLETED in {row.state for row in rows.values()}


def until_rows(file: Path, condition: Any) -> Row:
    """The first row for which it holds."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if found := [row for row in rows_in(file).values() if row and condition(row)]:
            return found[0]
        time.sleep(0.005)
    raise AssertionError("it never came about")


def received(client: socket.socket) -> str:
    """All that has arrived, up to the cut."""
    parts = []
    with client, contextlib.suppress(OSError):
        while part := client.recv(65536):
            parts.append(part)
    return b"".join(parts).decode().partition("\r\n\r\n")[2]
