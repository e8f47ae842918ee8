"""A ``quintet cluster`` under test, asked over HTTP."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2
from tests.support.processes import ENVIRONMENT, command, engines, family

ALWAYS = ("--port", "0", "--cpus-per-replica", "0", "--offline")
"""As many replicas as are asked for on however few cores."""

SMALL = ("--threads", "1", "--kv-cache", "64MiB", "--ctx-size", "1024")
"""For all but the toy, which is."""

START_S = 300.0
END_S = 60.0
ATTEMPTS = 5
"""Ray gives its own processes 30 seconds to come up, which is too little where much else runs."""


@dataclass(frozen=True)
class Cluster:
    """
    Args:
        url: without a path.
        headers: with a key, where one is needed.
        process: of the front.
    """

    url: str
    process: subprocess.Popen[str]
    headers: dict[str, str]

    def complete(self, **fields: Any) -> httpx2.Response:
        """One completion."""
        return httpx2.post(f"{self.url}/v1/completions", json=fields, headers=self.headers, timeout=120)

    def metric(self, name: str) -> float:
        """The sum of a metric over all models."""
        text = httpx2.get(f"{self.url}/metrics", headers=self.headers, timeout=60).text
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+-]+)$", text, re.MULTILINE))

    def replicas(self) -> list[int]:
        """Processes of Ray's that hold replicas."""
        return [one for one in family(self.process.pid) if command(one).startswith(b"ray::Replica")]

    def workers(self) -> list[int]:
        """Processes that compute."""
        return engines(self.process.pid)

    def all_at_once(self, asked: list[dict[str, Any]]) -> list[str]:
        """What becomes of each of these streams: ``whole``, ``error`` (one that says so), a status, or ``broken`` (none of these)."""
        with ThreadPoolExecutor(len(asked)) as threads:
            return list(threads.map(self._stream, asked))

    def _stream(self, fields: dict[str, Any]) -> str:
        lines: list[str] = []
        asked = {"stream": True, **fields}
        with (
            contextlib.suppress(httpx2.RemoteProtocolError),  # so an answer that is broken off ends, after its error
            httpx2.stream("POST", f"{self.url}/v1/completions", json=asked, timeout=600) as answer,
        ):
            if answer.status_code != 200:
                return str(answer.status_code)
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    lines.append(line)  # noqa: PERF401  # what came before it is broken off counts
        return "whole" if lines[-1] == "data: [DONE]" else "error" if '"error"' in lines[-1] else "broken"


@contextlib.contextmanager
def cluster(*arguments: str, key: str = "none", models: int = 1, sizes: Sequence[str] = SMALL) -> Iterator[Cluster]:
    """One that serves, with all its least replicas of each of so many models; ended in the end, and nothing of it is left."""
    line = [sys.executable, "-m", "quintet", "cluster", *arguments, *ALWAYS, *(() if "--toy" in arguments else sizes)]
    for _ in range(ATTEMPTS):
        process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        assert process.stdout is not None
        if banner := process.stdout.readline():
            break
        assert process.wait(END_S) == 1
    assert " at http" in banner, "it did not start"
    made = Cluster(banner.partition(" at ")[2].split()[0].removesuffix("/v1,"), process, {"authorization": f"Bearer {key}"})
    least = int(arguments[arguments.index("--replicas") + 1]) if "--replicas" in arguments else 1
    until(lambda: made.metric("quintet:replicas") == least * models)
    try:
        yield made
        left = family(process.pid)
        process.terminate()
        assert process.wait(END_S) == 0
        until(lambda: not any(command(one) for one in left))
    finally:
        process.kill()
        process.wait()


def until(what: Callable[[], bool]) -> None:
    """Wait until it is so."""
    end = time.monotonic() + START_S
    while not what():
        assert time.monotonic() < end, "it never was"
        time.sleep(0.05)
