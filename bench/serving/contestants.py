"""Who takes part in the serving scenarios, and how each is started for one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace

from bench.common.install import Store
from bench.common.plan import Plan
from bench.common.proc import child, worker
from bench.engines.engine_vllm import VllmServed
from bench.engines.engines import Command, LlamaServer, OpenVino, Ours, OursServed, Served, XLlamaCppServed
from bench.serving.scenarios import CORE, NATIVE, OPENVINO, OURS, VLLM, VLLM_BF16, WHEEL, Prompts, Scenario, Shown
from bench.serving.sessions import HttpSession, OpenVinoSession, Session
from quintet.load.play import Job, Load

PATH = "/fireworks/inference/v1/completions"
"""Of our dialect that has ``ignore_eos``, and a field that keeps requests' caches apart."""


class Contestant(ABC):
    """An engine.

    Args:
        key: what ``--engines`` calls it.
    """

    key: str

    @abstractmethod
    def prepare(self) -> str:
        """Get all that it needs; what it is, with its version. Raises ``PeerError`` if it cannot be had."""

    @abstractmethod
    def measure(self, scenario: Scenario, base: Plan, prompts: Prompts) -> Iterator[Shown]:
        """Go through a scenario once. Raises ``PeerError`` if that fails."""


class Started(Contestant):
    """One that is loaded as clients load it."""

    @contextmanager
    @abstractmethod
    def session(self, plan: Plan, options: Sequence[str]) -> Iterator[Session]:
        """It is ready for a plan (of which ``clients``, ``sequence`` and ``cache`` count), and is ended on exit.

        Args:
            options: more of its command line.
        """

    def measure(self, scenario: Scenario, base: Plan, prompts: Prompts) -> Iterator[Shown]:
        for variant, options in scenario.starts(self.key):
            with self.session(scenario.plan(base), options) as session:
                session.play(Load([Job(prompts.stream(16, 4))], 1))  # the first pass also pays for memory and code that are new
                for shown in scenario.measure(session, self.key, prompts):
                    yield replace(shown, variant=variant or shown.variant)


class Server(Started):
    """A server, started as ``bench.engines.run`` starts it."""

    def __init__(self, key: str, served: Served, path: str = "/v1/completions") -> None:
        self.key, self._served, self._path = key, served, path

    def prepare(self) -> str:
        return f"{self._served.name}, {self._served.weights}: {self._served.prepare()}"

    @contextmanager
    def session(self, plan: Plan, options: Sequence[str]) -> Iterator[Session]:
        started = copy(self._served)
        started.plan = plan
        with started.serving(*options) as base:
            yield HttpSession(base + self._path, started.requested, started.store.log(f"{self.key}-load"), plan.limit_s)


class Running(Started):
    """A server that somebody else has started; it stands where ours would."""

    key = OURS

    def __init__(self, url: str, model: str, store: Store) -> None:
        self._url, self._model, self._store = url, model, store

    def prepare(self) -> str:
        return self._url

    @contextmanager
    def session(self, plan: Plan, options: Sequence[str]) -> Iterator[Session]:
        del options  # it runs as it was started
        yield HttpSession(self._url, self._model, self._store.log("url-load"), plan.limit_s)


class InProcess(Started):
    """OpenVINO GenAI's continuous batching, which has no server."""

    key = OPENVINO

    def __init__(self, engine: OpenVino) -> None:
        self._engine = engine

    def prepare(self) -> str:
        return f"{self._engine.name}, in process, {self._engine.weights}: {self._engine.prepare()}"

    @contextmanager
    def session(self, plan: Plan, options: Sequence[str]) -> Iterator[Session]:
        engine = self._engine
        command: Command = [*worker(engine.python, "bench.serving.worker_openvino_load"), plan.to_json(), engine.model, *options]
        with child(command, engine.log, read=True, feed=True) as process:
            yield OpenVinoSession(process, engine.log, plan.limit_s)


class Core(Contestant):
    """Our core without scheduler and HTTP: what is there to be served."""

    key = CORE

    def __init__(self, engine: Ours) -> None:
        self._engine = engine

    def prepare(self) -> str:
        return f"{self._engine.name}, {self._engine.weights}: {self._engine.prepare()}"

    def measure(self, scenario: Scenario, base: Plan, prompts: Prompts) -> Iterator[Shown]:
        del prompts  # the worker has its own
        engine = copy(self._engine)
        engine.plan = scenario.plan(base)
        rates = {sample.column: sample.value for sample in engine.samples()}
        yield Shown(CORE, "", {f"{batch} decoding": rates[f"b{batch}"] for batch in engine.plan.batches}, dict(rates))


def contestants(plan: Plan, store: Store) -> list[Contestant]:
    """All, in the order in which each round goes through them; the formats are each engine's fastest of those it reads."""
    return [
        Server(OURS, OursServed(plan, store), PATH),
        Core(Ours(plan, store)),
        Server(WHEEL, XLlamaCppServed(plan, store, "Q4_0")),
        Server(NATIVE, LlamaServer(plan, store, "Q4_0")),
        InProcess(OpenVino(plan, store)),
        Server(VLLM, VllmServed(plan, store)),
        Server(VLLM_BF16, VllmServed(plan, store, "bfloat16")),
    ]
