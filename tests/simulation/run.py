"""Runs worlds, and makes the one that fails small: ``python -m tests.simulation.run --help``.

A failure is printed with the command that repeats it, bit for bit, and the end of its trace. It was made small before: as few requests, and
as few kinds of faults, as still break the same promise.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.clock import Violation
from tests.simulation.faults import Fault
from tests.simulation.world import REQUESTS, World

SEEDS = Path(__file__).with_name("seeds.txt")
"""Worlds in which something was found once, one a line: seed, requests, kinds of faults left out. They are run first."""

TRACE = 40
"""Lines of a trace that are printed."""


@dataclass(frozen=True, slots=True)
class Case:
    """Which world."""

    seed: int
    requests: int = REQUESTS
    without: tuple[Fault, ...] = ()

    @property
    def command(self) -> str:
        """What runs it again."""
        left_out = f" --without {','.join(self.without)}" if self.without else ""
        return f".venv/bin/python -m tests.simulation.run --seed {self.seed} --requests {self.requests}{left_out}"


@dataclass(slots=True)
class Outcome:
    """What came of worlds: how many requests there were, how sequences ended, simulated seconds, deaths, and what is broken."""

    requests: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    deaths: int = 0
    broken: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """More of them."""
        for each in dataclasses.fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def promise(case: Case) -> tuple[str, World]:
    """The promise that a world breaks, in a word or two, or nothing; and the world as it is then. An error in what is tested is one."""
    world = World(case.seed, case.requests, case.without)
    try:
        world.run()
    except Violation as violation:
        return str(violation), world
    except Exception as error:
        return f"{type(error).__name__} in {traceback.extract_tb(error.__traceback__)[-1].name}: {error}", world
    return "", world


def shrink(case: Case, what: str) -> Case:
    """The smallest world found that breaks the same promise."""

    def breaks(smaller: Case) -> bool:
        return promise(smaller)[0].split(":")[0] == what.split(":")[0]

    _, world = promise(case)
    for fault in world.chance.rates:
        smaller = dataclasses.replace(case, without=(*case.without, fault))
        case = smaller if breaks(smaller) else case
    low, high = 0, case.requests
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if breaks(dataclasses.replace(case, requests=middle)) else (middle, high)
    return dataclasses.replace(case, requests=high)


def run(case: Case, *, small: bool = True) -> Outcome:
    """Run a world; if it breaks a promise, make it small and tell of it."""
    what, world = promise(case)
    outcome = Outcome(case.requests, world.ends, world.seconds, world.watch.deaths)
    if what:
        case = shrink(case, what) if small else case
        what, world = promise(case)
        lines = "\n".join(f"  {line}" for line in world.watch.lines[-TRACE:])
        outcome.broken.append(f"{what}\n{lines}\nagain: {case.command}")
    return outcome


def run_all(cases: Iterable[Case], processes: int) -> Outcome:
    """Run worlds side by side, which changes none of them."""
    outcome = Outcome()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for each in pool.map(run, cases, chunksize=4):
            outcome.add(each)
    return outcome


def known() -> list[Case]:
    """Those of ``SEEDS``."""
    rows = [line.split("#")[0].split() for line in SEEDS.read_text(encoding="utf-8").splitlines()]
    return [Case(int(row[0]), int(row[1]), tuple(map(Fault, row[2:]))) for row in rows if row]


def cases(first: int, requests: int) -> list[Case]:
    """New worlds for so many requests, with consecutive seeds."""
    return [Case(first + number) for number in range(-(-requests // REQUESTS))]


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Runs one world, or as many as it takes for --total requests.")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first world; default: the time")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of one world")
    parser.add_argument("--without", default="", help="kinds of faults left out, with commas between them")
    parser.add_argument("--total", type=int, default=0, help="requests of all worlds together")
    options = parser.parse_args(arguments)
    if not options.total:
        case = Case(options.seed, options.requests, tuple(map(Fault, filter(None, options.without.split(",")))))
        outcome = run(case, small=False)
    else:
        outcome = run_all([*known(), *cases(options.seed, options.total)], os.cpu_count() or 1)
    print(report(outcome, options.seed))
    return bool(outcome.broken)


def report(outcome: Outcome, seed: int) -> str:
    """For people."""
    ends = "".join(f"\n{count:>9,} {end}" for end, count in outcome.ends.most_common())
    what = f"{outcome.requests:,} requests from seed {seed}, {outcome.seconds / 3600:.1f} simulated hours, {outcome.deaths:,} deaths"
    return "\n\n".join([f"{what}; sequences ended:{ends}", *outcome.broken])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
