"""A server of one's own, and how long others wait for it while it works."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def url_of(server: subprocess.Popen[str]) -> str:
    """Where a server that has just been started listens, from its first line."""
    assert server.stdout is not None
    found = re.search(r"http://\S+(?=/v1)", server.stdout.readline())
    assert found, "the server did not start"
    return found[0]


def engine_of(pid: int) -> int:
    """The process of a server's engine, or of its first."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return next(int(child) for child in children if "worker.child" in Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8"))


class Prober(threading.Thread):
    """Asks ``/livez`` over and over on a connection of its own."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._over = threading.Event()
        self.longest = 0.0

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=600)
        while not self._over.wait(0.005):
            begin = time.monotonic()
            connection.request("GET", "/livez")
            connection.getresponse().read()
            self.longest = max(self.longest, time.monotonic() - begin)

    def stop(self) -> float:
        """Seconds of the longest."""
        self._over.set()
        self.join()
        return self.longest


@contextmanager
def serving(model: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of its own: its process and address."""
    command = [sys.executable, "-m", "quintet", "serve", model, "--port", "0", "--log-level", "error", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server, urlsplit(url_of(server)).netloc
        finally:
            server.terminate()


def ask(address: str, path: str, body: dict[str, Any]) -> tuple[int, int]:
    """Status and bytes of the answer, read piece by piece."""
    connection = http.client.HTTPConnection(address, timeout=900)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    reply, size = connection.getresponse(), 0
    while part := reply.read1(1 << 16):
        size += len(part)
    return reply.status, size
