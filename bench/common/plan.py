"""What is measured: the settings of a run, the columns, and the lines by which a worker reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from bench.common.figures import Limits, best_of
from bench.common.prompt import prompt

MARK = "@ "
"""Begins every line of a worker's stdout that is a measurement: libraries print there too."""

WARM = 1500
"""Most tokens of the pass before the first that is measured."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What is measured one after the other in the same room for keys and values: the prefill of a prompt, then sequences that decode.

    Args:
        prompt: tokens of the prompt.
        repeats: prefill measurements per round.
        context: tokens in each sequence before decoding is measured.
        batches: numbers of sequences decoding together.
        steps: decode steps measured.
        plain: its columns are named without lengths.
    """

    prompt: int
    repeats: int
    context: int
    batches: tuple[int, ...]
    steps: int
    plain: bool = False

    @property
    def slots(self) -> int:
        """Most sequences at once."""
        return max(self.batches, default=1)

    @property
    def sequence(self) -> int:
        """Most tokens of any one sequence."""
        return max(self.prompt, self.context + self.steps) + 8

    @property
    def prefill(self) -> str:
        """Column of the prompt."""
        return "prefill" if self.plain else f"prefill {self.prompt}"

    def column(self, batch: int) -> str:
        """Column of ``batch`` sequences decoding together."""
        return column(batch) if self.plain else f"{column(batch)}@{self.context}"

    @property
    def columns(self) -> list[str]:
        return [self.prefill, *map(self.column, self.batches)]


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
        deep: tokens of a longer prompt, and of the context from which fewer sequences, ``deep_batches``, decode as well; 0 = none.
        long: tokens of a prompt that is only read; 0 = none.
        limit_s: most seconds of one engine in one round.
        cache: servers may keep prefixes of prompts, as they do by default; no measurement of ``bench.engines.run`` repeats one.
    """

    model: str
    threads: int
    rounds: int = 3
    prefill: int = 248
    context: int = 64
    steps: int = 128
    batches: tuple[int, ...] = (1, 4, 8, 16, 32)
    clients: tuple[int, ...] = (1, 8, 32)
    http_tokens: int = 128
    repeats: int = 3
    deep: int = 0
    deep_batches: tuple[int, ...] = (1, 8, 16)
    long: int = 0
    limit_s: float = 600.0
    cache: bool = False

    @property
    def sequence(self) -> int:
        """Most tokens of any one sequence that a server gets: the KV cache that it must have per sequence."""
        return max(self.prefill, self.context + max(self.steps, self.http_tokens)) + 8

    @property
    def stages(self) -> list[Stage]:
        """What is measured without HTTP, each in a room of its own: 32 sequences as long as the longest prompt would be too large a one."""
        found = [Stage(self.prefill, self.repeats, self.context, self.batches, self.steps, plain=True)]
        if self.deep:
            found.append(Stage(self.deep, 1, self.deep, self.deep_batches, self.steps // 4))
        if self.long:
            found.append(Stage(self.long, 1, 0, (), 0))
        return found

    @property
    def columns(self) -> list[str]:
        """Of all stages, in their order."""
        return [name for stage in self.stages for name in stage.columns]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        values = json.loads(text)
        return cls(**values | {name: tuple(values[name]) for name in ("batches", "clients", "deep_batches")})


def column(batch: int) -> str:
    """Column of ``batch`` sequences decoding together."""
    return f"b{batch}"


def emit(name: str, value: float, limits: Limits | None = None) -> None:
    """Report one measurement to the parent: seconds for ``load``, else tokens per second; and what the machine allowed meanwhile."""
    print(MARK + json.dumps([name, value, {}, limits or {}]), flush=True)


class Measured(Protocol):
    """An engine inside a worker process."""

    def open(self, stage: Stage) -> None:
        """Make the room that a stage needs, in place of the last one's."""
        ...

    def prefill(self, tokens: Sequence[int]) -> float:
        """Tokens per second of one prompt up to its first token."""
        ...

    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        """Tokens per second of all sequences together over ``steps`` greedy steps after the first token."""
        ...


class Between:
    """Limits of the machine right before and right after a column, of which the better count: what other guests of a host leave changes.

    Args:
        look: measures them; empty ones if that is not wanted.
    """

    def __init__(self, look: Callable[[], Limits]) -> None:
        self._look, self._before = look, look()

    def emit(self, name: str, values: Sequence[float]) -> None:
        """A column that was just measured."""
        before, self._before = self._before, self._look()
        for value in values:
            emit(name, value, best_of([before, self._before]))


def measure(engine: Measured, plan: Plan, look: Callable[[], Limits] = dict) -> None:
    """Every measurement of one round, each with prompts that the engine has not seen; ``look`` at the machine's limits between columns."""
    serial, between = iter(range(sys.maxsize)), Between(look)
    for stage in plan.stages:
        engine.open(stage)
        engine.prefill(prompt(next(serial), min(stage.prompt, WARM)))  # the first pass also pays for memory and code that are new
        between.emit(stage.prefill, [engine.prefill(prompt(next(serial), stage.prompt)) for _ in range(stage.repeats)])
        if stage.plain:  # nor is the memory of the longest sequences new to any
            engine.decode([prompt(next(serial), stage.context) for _ in range(max(stage.batches))], stage.steps)
        for batch in stage.batches:
            between.emit(stage.column(batch), [engine.decode([prompt(next(serial), stage.context) for _ in range(batch)], stage.steps)])
