"""The scheduler's harness with the compiled core's samplers: every control is there."""

from __future__ import annotations

import functools
from typing import Any

from tests.backends.native.schedule import harness

from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.samplers import NativeSamplers
from quintet.backends.toy import ToyTokenizer

NATIVE = NativeSamplers(Cpu(), ToyTokenizer().pieces, ToyTokenizer().eos_ids)


class Simulation(harness.Simulation):
    """An engine without its thread."""

    def __init__(self, **options: Any) -> None:
        super().__init__(samplers=NATIVE, **options)


alone = functools.partial(harness.alone, samplers=NATIVE)
assert_as_alone = functools.partial(harness.assert_as_alone, samplers=NATIVE)
