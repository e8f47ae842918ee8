"""What is measured: the settings of a run, the columns, and the lines by which a worker reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from bench.common.prompt import prompt

MARK = "@ "
"""Begins every line of a worker's stdout that is a measurement: libraries print there too."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a run.

    Args:
        model: path of the bundled model.
        threads: compute threads of every engine.
        rounds: times the whole list of engines is gone through.
        prefill: tokens of the prompt of the prefill measurement.
        context: tokens in each sequence before decoding is measured.
        steps: decode steps measured.
        batches: numbers of sequences decoding together.
        clients: numbers of streaming clients.
        http_tokens: completion tokens of each streaming client.
        repeats: prefill measurements per round.
        limit_s: most seconds of one engine in one round.
        cache: servers may keep prefixes of prompts, as they do by default; no measurement of ``bench.engines.run`` repeats one.
    """

    model: str
    threads: int
    rounds: int = 3
    prefill: int = 248
    context: int = 64
    steps: int = 64
    batches: tuple[int, ...] = (1, 4, 8, 16, 32)
    clients: tuple[int, ...] = (1, 8, 32)
    http_tokens: int = 128
    repeats: int = 3
    limit_s: float = 600.0
    cache: bool = False

    @property
    def sequence(self) -> int:
        """Most tokens of any one sequence: the KV cache that an engine must have per sequence."""
        return max(self.prefill, self.context + max(self.steps, self.http_tokens)) + 8

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        values = json.loads(text)
        return cls(**values | {name: tuple(values[name]) for name in ("batches", "clients")})


def column(batch: int) -> str:
    """Column of ``batch`` sequences decoding together."""
    return f"b{batch}"


def emit(name: str, value: float) -> None:
    """Report one measurement to the parent: seconds for ``load``, else tokens per second."""
    print(MARK + json.dumps([name, value]), flush=True)


class Measured(Protocol):
    """An engine inside a worker process."""

    def prefill(self, tokens: Sequence[int]) -> float:
        """Tokens per second of one prompt up to its first token."""
        ...

    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        """Tokens per second of all sequences together over ``steps`` greedy steps after the first token."""
        ...


def measure(engine: Measured, plan: Plan) -> None:
    """Every measurement of one round, each with prompts that the engine has not seen."""
    serial = iter(range(sys.maxsize))
    engine.prefill(prompt(next(serial), plan.prefill))  # the first pass also pays for memory and code that are new
    for _ in range(plan.repeats):
        emit("prefill", engine.prefill(prompt(next(serial), plan.prefill)))
    for batch in plan.batches:
        emit(column(batch), engine.decode([prompt(next(serial), plan.context) for _ in range(batch)], plan.steps))
