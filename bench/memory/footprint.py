"""How soon a server answers after its start, and how much memory it takes when it is idle.

    python -m bench.memory.footprint [MODEL] [--starts 5]

Memory is the proportional set size of all of the server's processes, as Linux counts it: a page that two of them share counts once.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.common.command import model_path
from bench.common.proc import PeerError, child, last_words, say

READY_S = 60.0
SETTLE_S = 1.0
_POLL_S = 0.01
MIB = 1 << 20


def main() -> None:
    """Measure, and print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--starts", type=int, default=5, help="starts that are timed; the best counts")
    args = parser.parse_args()
    path = Path(model_path(args.model))
    times = []
    for start in range(args.starts):
        say(f"start {start + 1} of {args.starts}")
        begin = time.monotonic()
        with server(path) as (port, _):
            first_token(port, path.stem)
            times.append(time.monotonic() - begin)
    with server(path) as (_, leader):
        time.sleep(SETTLE_S)
        idle = memory(leader)
    size = path.stat().st_size
    print(f"model file                        {size / MIB:8.1f} MiB")
    print(f"start to first token, best of {args.starts}   {min(times):8.2f} s   (median {sorted(times)[len(times) // 2]:.2f})")
    print(f"idle                              {idle / MIB:8.1f} MiB = {idle / size:.2f} x the file")


@contextmanager
def server(path: Path, *options: str) -> Iterator[tuple[int, int]]:
    """A server that is ready: its port and the process that leads it.

    Args:
        options: more of its command line.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        command = [sys.executable, "-m", "quintet", "serve", str(path), "--port", str(port), "--log-level", "error", *options]
        with child(command, log, read=False) as process:
            await_ready(port, process.poll, log)
            yield port, process.pid


def await_ready(port: int, ended: Any, log: Path, poll: float = _POLL_S) -> None:
    """Until ``/health`` says so."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if ended() is not None:
            raise PeerError(f"the server ended: {last_words(log)}")
        try:
            if ask(port, "GET", "/health")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(poll)
    raise PeerError(f"the server was not ready in {READY_S:g} s")


def ask(port: int, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    """Status and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def first_token(port: int, model: str) -> None:
    """One token of a completion."""
    status, answer = ask(port, "POST", "/v1/completions", {"model": model, "prompt": "The sky is", "max_tokens": 1})
    if status != 200:
        raise PeerError(f"status {status}: {answer[:300].decode('utf-8', 'replace')}")


def memory(leader: int) -> int:
    """Bytes of all processes under ``leader``, itself included; those that end meanwhile count nothing."""
    total = 0
    for pid in family(leader):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
        total += int(found[1]) * 1024 if found else 0
    return total


def family(leader: int) -> list[int]:
    """``leader`` and all processes that descend from it."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [leader]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


if __name__ == "__main__":
    try:
        main()
    except PeerError as error:
        sys.exit(f"error: {error}")
