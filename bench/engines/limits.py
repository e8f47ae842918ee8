"""What a machine can do at most in each column, from its measured limits and the work of a token.

A step reads the weights once, of experts those that any of its tokens takes, and the keys and values of each sequence; it multiplies
weights in integers and attends in floats. Reading goes on beside multiplying, so the longer of the two counts; the two kinds of
multiplication use the same units, so their times add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.common.plan import Plan, Stage
from bench.engines.model import Work

WITHOUT = {
    "avx2": ("-mno-avx512f", "-mno-avxvnni", "-U__AMX_INT8__"),
    "avxvnni": ("-mno-avx512f", "-U__AMX_INT8__"),
    "avx512": ("-U__AMX_INT8__",),
}
"""Of the core's instruction sets, what ``machine.cpp`` is compiled without where they are measured on a CPU that has more."""


TILE_ROWS = 16
"""Of AMX's tiles: with fewer rows a part of them is left unused."""


def compiler_options(isas: Sequence[str]) -> tuple[str, ...]:
    """For limits of the widest of these instruction sets; "" is the best that the CPU has."""
    return tuple(option for option in WITHOUT["avx2"] if all(option in WITHOUT.get(isa, ()) for isa in isas))


@dataclass(frozen=True, slots=True)
class Rates:
    """10^9 a second, with as many threads as are measured, for a step of so many rows; 0 = not known.

    Args:
        read: bytes.
        integers: multiply-adds of weights, the bare instruction.
        blocks: the same, and each block's sum made a float and scaled, as docs/decisions/0002 has it.
        floats: multiply-adds of attention.
    """

    read: float
    integers: float
    blocks: float
    floats: float

    @classmethod
    def of(cls, measured: Mapping[str, Mapping[str, float | str]], threads: int, rows: int) -> Rates:
        """From ``machine.cpp``; of weights of 4 bits where these have a limit of their own, of tiles from as many rows on as they have."""
        found = {name: float(limit[str(threads)]) for name, limit in measured.items() if str(threads) in limit}
        integers, blocks = found.get("int4x8") or found.get("int8", 0.0), found.get("int8 in blocks", 0.0)
        if rows >= TILE_ROWS:
            integers = max(integers, found.get("int8 in tiles", 0.0))
            blocks = max(blocks, found.get("int8 in tiles in blocks", 0.0))
        return cls(found.get("read_GBps", 0.0), integers, blocks, found.get("float", 0.0))


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a column: so many tokens at once.

    Args:
        tokens: that it yields.
        read: bytes.
        integers, floats: multiply-adds.
    """

    column: str
    tokens: int
    read: float
    integers: float
    floats: float

    def by_reading(self, rates: Rates) -> float:
        """Tokens per second at most."""
        return self.tokens * rates.read * 1e9 / self.read

    def by_multiplying(self, integers: float, floats: float) -> float:
        """Tokens per second at most, at these rates."""
        return self.tokens * 1e9 / (self.integers / integers + self.floats / floats)


def steps(plan: Plan, work: Work) -> Iterable[Step]:
    """Of every column of a plan, with all keys and values as floats of 16 bits."""
    for stage in plan.stages:
        yield _prompt(stage, work)
        for batch in stage.batches:
            seen = batch * (stage.context + stage.steps / 2)  # tokens that all sequences of a mean step attend to
            read = work.weights(batch) + seen * work.kv_bytes
            macs = batch * (work.layer_macs + work.head_macs)
            yield Step(stage.column(batch), batch, read, macs, seen * work.attention_macs)


def _prompt(stage: Stage, work: Work) -> Step:
    length = stage.prompt
    seen = length * length / 2
    return Step(stage.prefill, length, work.weights(length), length * work.layer_macs + work.head_macs, seen * work.attention_macs)
