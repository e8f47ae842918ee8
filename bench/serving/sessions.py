"""Engines that are ready to be loaded: servers over HTTP, and OpenVINO GenAI in a process of its own, all behind ``Session.play``."""

from __future__ import annotations

import json
import re
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory
from urllib.parse import urljoin
from urllib.request import urlopen

from bench.common.plan import MARK
from bench.common.proc import PeerError, end, last_words, output
from quintet.load.client import Trace
from quintet.load.figures import from_json
from quintet.load.play import Load


class Session(ABC):
    """A started engine."""

    @abstractmethod
    def play(self, load: Load) -> list[Trace]:
        """Traces of a load, in the order of its jobs. Raises ``PeerError`` if none came back; a failed request is no such failure."""

    def metric(self, name: str) -> float | None:
        """A sample of the server's ``/metrics``; ``None`` if it has none of that name."""
        del name
        return None


class HttpSession(Session):
    """A server, loaded by ``bench.common.load`` in a process of its own.

    Args:
        url: of completions.
    """

    def __init__(self, url: str, model: str, log: Path, limit: float) -> None:
        self._url, self._model, self._log, self._limit = url, model, log, limit

    def play(self, load: Load) -> list[Trace]:
        with written(load) as (jobs, traces):
            what: list[str | Path] = ["--url", self._url, "--model", self._model, "--timeout", str(self._limit)]
            command = [sys.executable, "-m", "bench.common.load", *what, "--jobs", jobs, "--traces", traces]
            output(command, self._log, self._limit + 30)
            return from_json(json.loads(traces.read_text()))

    def metric(self, name: str) -> float | None:
        try:
            with urlopen(urljoin(self._url, "/metrics"), timeout=10) as answer:
                text = answer.read().decode()
        except OSError:  # not every server has it
            return None
        found = re.search(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else None


class OpenVinoSession(Session):
    """OpenVINO GenAI's own batching, called in process: no HTTP, no JSON, no text."""

    def __init__(self, process: Popen[str], log: Path, limit: float) -> None:
        self._process, self._log, self._limit = process, log, limit
        self._line()

    def play(self, load: Load) -> list[Trace]:
        assert self._process.stdin
        with written(load) as (jobs, traces):
            self._process.stdin.write(f"{json.dumps([str(jobs), str(traces)])}\n")
            self._process.stdin.flush()
            self._line()
            return from_json(json.loads(traces.read_text()))

    def _line(self) -> None:
        """Wait until the worker says that it is done."""
        assert self._process.stdout
        timer = threading.Timer(self._limit, end, [self._process])
        timer.start()
        try:
            for line in self._process.stdout:
                if line.startswith(MARK):
                    return
        finally:
            timer.cancel()
        raise PeerError(f"the worker ended: {last_words(self._log)}")


@contextmanager
def written(load: Load) -> Iterator[tuple[Path, Path]]:
    """A file with the load, and where its traces are to be written: a pipe may cut so much short (Python's ``-u``)."""
    with TemporaryDirectory() as folder:
        jobs = Path(folder) / "load.json"
        jobs.write_text(json.dumps(asdict(load)))
        yield jobs, jobs.with_name("traces.json")
