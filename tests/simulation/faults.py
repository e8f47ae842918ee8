"""What goes wrong, and how often: every chance is drawn from the seed, each kind of fault from a stream of its own.

A world has some kinds of faults and not others, and each at a rate of its own (swarm testing; Groce et al., ISSTA 2012): a fault that
always comes beside all others may never be seen to do what it does alone. As the streams are apart, a kind can be left out and the rest of
the world stays nearly as it was, which is how a failing seed is made small.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from random import Random


class Fault(enum.StrEnum):
    """A kind of fault."""

    # the engine's process
    CRASH_STEP = enum.auto()  # a step kills it
    HANG_STEP = enum.auto()  # a step never ends
    SLOW_STEP = enum.auto()  # a step takes seconds
    FAIL_STEP = enum.auto()  # a step raises
    BREAK_MEMORY = enum.auto()  # from a step on, nothing that it computes is finite
    CRASH_LOAD = enum.auto()
    HANG_LOAD = enum.auto()
    SLOW_LOAD = enum.auto()
    KILL = enum.auto()  # at any moment, by somebody else
    HANG_IDLE = enum.auto()  # it reads nothing any more
    # the way to it
    LATE = enum.auto()  # a message takes seconds
    CUT = enum.auto()  # a frame comes in two pieces
    NONSENSE = enum.auto()  # what comes is no frame
    NO_PROCESS = enum.auto()  # none can be started
    # the front's process
    STAND_STILL = enum.auto()  # it is held up for seconds
    KILL_FRONT = enum.auto()  # killed, with all that it has in memory; another takes its place
    # clients
    LEAVE = enum.auto()  # goes away before the end
    READ_SLOWLY = enum.auto()
    CALL_OFF = enum.auto()  # aborts one of its sequences
    POISON = enum.auto()  # asks for what kills the engine, or fails in it
    BURST = enum.auto()  # comes with many others at once
    # the ledger's disk
    DISK_FULL = enum.auto()
    DISK_SLOW = enum.auto()
    # the draft model
    FAIL_DRAFT = enum.auto()  # a step of it raises


CHANCES = {
    Fault.CRASH_STEP: (0.0005, 0.03),
    Fault.HANG_STEP: (0.0003, 0.005),
    Fault.SLOW_STEP: (0.002, 0.05),
    Fault.FAIL_STEP: (0.0005, 0.02),
    Fault.BREAK_MEMORY: (0.0002, 0.003),
    Fault.CRASH_LOAD: (0.05, 0.7),
    Fault.HANG_LOAD: (0.02, 0.3),
    Fault.SLOW_LOAD: (0.05, 0.5),
    Fault.KILL: (0.0002, 0.01),
    Fault.HANG_IDLE: (0.001, 0.01),
    Fault.LATE: (0.002, 0.1),
    Fault.CUT: (0.05, 0.5),
    Fault.NONSENSE: (0.0002, 0.002),
    Fault.NO_PROCESS: (0.05, 0.5),
    Fault.STAND_STILL: (0.0002, 0.005),
    Fault.LEAVE: (0.02, 0.3),
    Fault.READ_SLOWLY: (0.02, 0.3),
    Fault.CALL_OFF: (0.02, 0.2),
    Fault.POISON: (0.002, 0.05),
    Fault.BURST: (0.02, 0.2),
    Fault.DISK_FULL: (0.0005, 0.02),
    Fault.DISK_SLOW: (0.001, 0.05),
    Fault.FAIL_DRAFT: (0.001, 0.05),
    Fault.KILL_FRONT: (0.0005, 0.01),
}
"""The least and the greatest chance of each at every point where it may come."""

SHARE = 0.35
"""Of the kinds of faults, in a world."""


class Chance:
    """The dice of one world.

    Args:
        without: kinds that are left out.
        only: the kinds there are; ``None`` = drawn.
    """

    def __init__(self, seed: int, without: Collection[Fault] = (), only: Collection[Fault] | None = None) -> None:
        self._seed = seed
        swarm = self.stream("swarm")
        self.rates: dict[Fault, float] = {}
        for fault, (least, most) in CHANCES.items():
            drawn, rate = swarm.random() < SHARE, least * (most / least) ** swarm.random()
            if fault not in without and (drawn if only is None else fault in only):
                self.rates[fault] = rate
        self._streams = {fault: self.stream(fault) for fault in self.rates}

    def stream(self, name: str) -> Random:
        """Random numbers for one purpose, which no other can use up."""
        return Random(f"{self._seed} {name}")

    def happens(self, fault: Fault) -> bool:
        """Now?"""
        rate = self.rates.get(fault)
        return rate is not None and self._streams[fault].random() < rate

    def seconds(self, fault: Fault, least: float, most: float) -> float:
        """How long it lasts: short or long, each order of magnitude is as likely."""
        seconds: float = least * (most / least) ** self._streams[fault].random()
        return seconds
