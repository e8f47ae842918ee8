"""The engines that are compared: how each is got, started and measured. Each runs in processes of its own."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import ClassVar
from urllib.error import URLError
from urllib.request import urlopen

from bench.common.figures import Limits
from bench.common.install import Store
from bench.common.plan import MARK, Plan, Stage, column
from bench.common.proc import PeerError, child, last_words, lines, output, say, worker
from quintet.config import KvType

BUNDLED = "as in the file"
"""Weights of the model file itself; other values are the ggml types it is requantised to."""
Command = Sequence[str | Path]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement.

    Args:
        value: seconds for ``load``, else tokens per second.
        detail: the load generator's summary.
        limits: of the machine at that time; empty = not measured.
    """

    column: str
    value: float
    detail: dict[str, object] = field(default_factory=dict)
    limits: Limits = field(default_factory=dict)


@dataclass
class Engine(ABC):
    """One row of the table.

    Args:
        group: what ``--only`` calls it.
        name, weights: as shown.
    """

    plan: Plan
    store: Store
    weights: str = BUNDLED
    group: ClassVar[str]
    name: ClassVar[str]
    ours: ClassVar[bool] = False
    http: ClassVar[bool] = False

    @property
    def title(self) -> str:
        """What the table calls it."""
        return ", ".join([self.name, *self.differs])

    @property
    def key(self) -> str:
        return "-".join([self.group, self.weights.replace(" ", "-"), *self.differs])

    @property
    def differs(self) -> list[str]:
        """What tells this row from that of the engine as it comes, with the same weights."""
        return [self.store.isa] if self.store.isa else []

    @property
    def log(self) -> Path:
        return self.store.log(self.key)

    def prepare(self) -> str:
        """Get everything that is needed; the version. Raises ``PeerError`` if it cannot be had."""
        self.model = Path(self.plan.model)
        if self.weights != BUNDLED:
            self.model = self.store.requantised(self.model, self.weights)
        return self.install()

    @abstractmethod
    def install(self) -> str:
        """Get the program; its version. Raises ``PeerError`` if it cannot be had."""

    def from_registry(self, package: str) -> str:
        """Install a package in an environment of its own, ``self.python``; its version."""
        self.python = self.store.venv(package, package)
        return f"{package} {self.store.version(self.python, package)}"

    @abstractmethod
    def samples(self) -> Iterator[Sample]:
        """Measure once. Raises ``PeerError`` if it fails or takes too long."""

    def measured(self, into: list[Sample]) -> None:
        """Measure once, saying each sample as it comes: one that fails keeps those before. Raises what ``samples`` raises."""
        for sample in self.samples():
            into.append(sample)
            say(f"    {sample.column}: {sample.value:.4g}")


class Worker(Engine):
    """An engine measured by a Python worker that reports with ``plan.emit``."""

    @abstractmethod
    def command(self) -> Command:
        """The worker, without its arguments."""

    def samples(self) -> Iterator[Sample]:
        for line in lines([*self.command(), self.plan.to_json(), self.model], self.log, self.plan.limit_s):
            if line.startswith(MARK):
                yield Sample(*json.loads(line.removeprefix(MARK)))


class Served(Engine):
    """An engine measured over HTTP with streaming, by the load generator in another process."""

    http = True
    extra: ClassVar[dict[str, object]] = {"ignore_eos": True}
    requested: ClassVar[str] = "bench"

    @abstractmethod
    def command(self, port: int) -> Command:
        """The server on ``port``."""

    @contextmanager
    def serving(self, *options: str) -> Iterator[str]:
        """A server that is ready; its URL, without a path.

        Args:
            options: more of its command line.
        """
        port = free_port()
        with child([*self.command(port), *options], self.log, read=False) as server:
            wait_ready(port, server, self.log, self.plan.limit_s)
            yield f"http://127.0.0.1:{port}"

    def samples(self) -> Iterator[Sample]:
        begin = time.monotonic()
        with self.serving() as url:
            yield Sample("load", time.monotonic() - begin)
            yield from self._loads(f"{url}/v1/completions")

    def _loads(self, url: str) -> Iterator[Sample]:
        plan, serial = self.plan, plan_serials(self.plan)
        self._load(url, next(serial), 1, 1, plan.prefill, 4)  # the first pass also pays for memory and code that are new
        for _ in range(plan.repeats):
            result = self._load(url, next(serial), 1, 1, plan.prefill, 4)
            yield Sample("prefill", plan.prefill / (number(result, "ttft_ms", "p50") / 1e3), result)
        for clients in plan.clients:
            result = self._load(url, next(serial), clients, clients, plan.context, plan.http_tokens)
            short = clients * plan.http_tokens - number(result, "tokens")
            if short:
                say(f"    {clients} clients: streams ended {short:.0f} tokens early; the rate is of the time before the first end")
            if rate := number(result, "steady_tokens_per_s"):
                yield Sample(column(clients), rate, result)
            else:
                say(f"    {clients} clients: the streams never ran all at once")

    def _load(self, url: str, serial: int, clients: int, requests: int, prompt: int, tokens: int) -> dict[str, object]:
        shape = ["--clients", clients, "--requests", requests, "--prompt-tokens", prompt, "--max-tokens", tokens, "--serial", serial]
        what = ["--url", url, "--model", self.requested, "--extra", json.dumps(self.extra), "--timeout", self.plan.limit_s]
        command: Command = [sys.executable, "-m", "bench.common.load", *map(str, [*what, *shape])]
        result: dict[str, object] = json.loads(output(command, self.store.log(f"{self.key}-load"), self.plan.limit_s + 30))
        if result["failed"]:
            raise PeerError(f"{result['failed']} of {result['requests']} requests failed: {result['errors']}")
        return result


def number(result: dict[str, object], *path: str) -> float:
    """A number in a summary."""
    value: object = result
    for name in path:
        assert isinstance(value, dict)
        value = value[name]
    assert isinstance(value, int | float)
    return float(value)


def plan_serials(plan: Plan) -> Iterator[int]:
    """First prompt number of each load, so far apart that no two loads share a prompt."""
    return iter(range(0, 10**6, max(plan.clients) + 1))


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_ready(port: int, server: Popen[str], log: Path, limit: float) -> None:
    """Until ``/health`` answers 200. Raises ``PeerError`` if the server ends or takes too long."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        if server.poll() is not None:
            raise PeerError(f"the server ended: {last_words(log)}")
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (URLError, OSError):
            pass
        time.sleep(0.02)
    raise PeerError(f"the server was not ready after {limit:g} s")


def our_python(isa: str) -> Command:
    """Begins a command whose core takes this instruction set; empty = as it would."""
    return ["env", f"QUINTET_ISA={isa}", sys.executable] if isa else [sys.executable]


@dataclass
class Ours(Worker):
    """Our core.

    Args:
        isa: the instruction set that it is made to take; empty = as it would.
        kv_type: of keys and values.
        limits: the program that measures the machine's limits beside it; empty = they are not.
    """

    isa: str = ""
    kv_type: KvType = "f16"
    limits: str = ""
    group, name, ours = "ours", "Quintet, core", True

    @property
    def differs(self) -> list[str]:
        cells = "" if self.kv_type == "f16" else f"--kv-type {self.kv_type}"
        return [what for what in (self.isa, cells) if what]

    def install(self) -> str:
        code = "import quintet, quintet._core as core; print(quintet.__version__, core.Cpu('', 1).isa)"
        return output([*our_python(self.isa), "-c", code], self.log, 60).strip()

    def command(self) -> Command:
        return [*our_python(self.isa), "-m", "bench.engines.worker_ours", self.kv_type, self.limits]


class OursServed(Served):
    group, name, ours = "ours-http", "Quintet, HTTP streaming", True
    extra: ClassVar[dict[str, object]] = {}  # this dialect has no ignore_eos

    def install(self) -> str:
        return output([sys.executable, "-m", "quintet", "--version"], self.log, 60).strip()

    def command(self, port: int) -> Command:
        options = ["--port", str(port), "--threads", str(self.plan.threads), "--served-model-name", self.requested]
        return [*our_python(self.store.isa), "-m", "quintet", "serve", self.model, *options]


class LlamaCpp(Engine):
    """llama.cpp's own ``llama-batched-bench``: random tokens and no sampling, which only helps it."""

    group, name = "llamacpp", "llama.cpp, built for this CPU"

    def install(self) -> str:
        self._program = self.store.llamacpp() / "llama-batched-bench"
        return self.store.llamacpp_version()

    def _run(self, stage: Stage, prompt: int, steps: int, batches: Sequence[int], times: int = 1) -> Iterator[dict[str, float]]:
        """The program's rows, for each of the batches, ``times`` times over; the last row is ``load``, in milliseconds."""
        plan = self.plan
        cells = stage.slots * (prompt + steps + 8)
        shape = ["-c", cells, "-b", 2048, "-ub", 512, "-t", plan.threads, "-tb", plan.threads, "-pps"]
        what = ["-npp", ",".join([str(prompt)] * times), "-ntg", steps, "-npl", ",".join(map(str, batches))]
        command: Command = [self._program, "-m", self.model, *map(str, [*shape, *what]), "--output-format", "jsonl", "-lv", "4"]
        before = self.log.stat().st_size if self.log.exists() else 0
        for line in lines(command, self.log, plan.limit_s):
            if line.startswith("{"):
                yield json.loads(line)
        said = re.search(r"load time = +([\d.]+) ms", self.log.read_bytes()[before:].decode(errors="replace"))
        if said:
            yield {"load": float(said[1])}

    def samples(self) -> Iterator[Sample]:
        for stage in self.plan.stages:
            rows = self._run(stage, stage.prompt, 1, [1], stage.repeats + 1)
            next(rows, None)  # the first pass also pays for memory and code that are new
            for row in rows:
                if "load" not in row:
                    yield Sample(stage.prefill, row["speed_pp"])
                elif stage.plain:
                    yield Sample("load", row["load"] / 1e3)
            for row in self._run(stage, stage.context, stage.steps, stage.batches) if stage.batches else ():
                if "pl" in row:
                    yield Sample(stage.column(int(row["pl"])), row["speed_tg"])


class LlamaServer(Served):
    group, name = "llama-server", "llama-server, built for this CPU, HTTP streaming"

    def install(self) -> str:
        self._program = self.store.llamacpp() / "llama-server"
        return self.store.llamacpp_version()

    def command(self, port: int) -> Command:
        slots, threads = max(self.plan.clients), str(self.plan.threads)
        options = ["-c", str(slots * self.plan.sequence), "-np", str(slots), "-t", threads, "-tb", threads]
        cache = [] if self.plan.cache else ["--no-cache-prompt"]
        return [self._program, "-m", self.model, "--port", str(port), *options, *cache]


class XLlamaCpp(Worker):
    group, name = "xllamacpp", "llama.cpp, wheel xllamacpp"

    def install(self) -> str:
        return self.from_registry("xllamacpp")

    def command(self) -> Command:
        return worker(self.python, "bench.engines.worker_xllamacpp")


class XLlamaCppServed(Served):
    group, name = "xllamacpp-http", "llama-server of the wheel xllamacpp, HTTP streaming"

    def install(self) -> str:
        return self.from_registry("xllamacpp")

    def command(self, port: int) -> Command:
        return [*worker(self.python, "bench.engines.worker_xllamacpp"), self.plan.to_json(), self.model, str(port)]


@dataclass
class OpenVino(Worker):
    """OpenVINO GenAI.

    Args:
        exact: computes in float32, with keys and values in 16 bits, as our core does; otherwise as it comes, in bfloat16 where the CPU
            can, with keys and values in 8 bits.
    """

    exact: bool = False
    group, name = "openvino", "OpenVINO GenAI"

    @property
    def differs(self) -> list[str]:
        return [*super().differs, *(["float32"] if self.exact else [])]

    def install(self) -> str:
        return self.from_registry("openvino-genai")

    def command(self) -> Command:
        exactly = ["KV_CACHE_PRECISION=f16", "INFERENCE_PRECISION_HINT=f32"] if self.exact else []
        return [*worker(self.python, "bench.engines.worker_openvino"), *exactly]
