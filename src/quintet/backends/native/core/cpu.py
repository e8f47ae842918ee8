"""What an engine computes on: the kernels of one instruction set, and a team of threads."""

from __future__ import annotations

from quintet import _core

Cpu = _core.Cpu
"""Made once for an engine: its model, the scores and the draws share the kernels and the threads.

Args:
    isa: instruction set, see ``isas``; empty = ``QUINTET_ISA`` from the environment, else the best. ``ValueError``: it cannot run here.
    threads: from 1 to 256. ``RuntimeError``: the system grants fewer.
"""


def isas() -> list[str]:
    """Instruction sets this build can run on this CPU, best first; the last is always ``portable``."""
    return list(_core.isas())
