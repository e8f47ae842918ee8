"""Peers whose scheduler is stepped by hand, so that prefill and decode steps can be timed alone."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence

from bench.common.plan import Stage

BUDGET = 2048
"""Tokens that a scheduler may compute in a step: a whole prompt of the plain stage, its fastest setting."""


def beginning(prompts: Sequence[Sequence[int]]) -> int:
    """At most so many tokens does one sequence get while the prompts of others are still read, ``BUDGET`` tokens a step."""
    return 2 * sum(map(len, prompts)) // BUDGET + 4


class Stepped(ABC):
    """An engine inside a worker process. Its prompts are read in some steps, in which those that were read already decode."""

    @abstractmethod
    def add(self, tokens: Sequence[int], most: int) -> int:
        """A request for ``most`` greedy tokens, whatever ends a text; what ``step`` calls it."""

    @abstractmethod
    def step(self) -> Mapping[int, int]:
        """One step; the number of tokens that it brought, by request."""

    @abstractmethod
    def unfinished(self) -> bool:
        """Requests are left."""

    def open(self, stage: Stage) -> None:
        """Its cache has room for every stage, from the start."""
        del stage

    def prefill(self, tokens: Sequence[int]) -> float:
        """Tokens per second of one prompt up to its first token."""
        begin = time.perf_counter()
        self.add(tokens, 1)
        while not sum(self.step().values()):
            pass
        return len(tokens) / (time.perf_counter() - begin)

    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        """Tokens per second of all sequences together over ``steps`` steps, from when each has its first token."""
        wanted, got = [self.add(tokens, steps + beginning(prompts)) for tokens in prompts], Counter[int]()
        while not all(got[request] for request in wanted):
            got.update(self.step())
        begin = time.perf_counter()
        tokens = sum(sum(self.step().values()) for _ in range(steps))
        rate = tokens / (time.perf_counter() - begin)
        while self.unfinished():
            self.step()
        return rate
