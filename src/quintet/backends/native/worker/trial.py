"""A first step of a runner that nobody uses yet, for what it tells of all others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quintet.backends.native.core.types import Batch, Runner

_TOKENS = 4
"""All weights are read once, and a start waits no longer than that takes."""


def full_step_s(runner: Runner, batch_tokens: int, clock: Callable[[], float]) -> float:
    """Compute a few tokens; seconds that a step of ``batch_tokens`` may take, estimated from it: rather too many."""
    tokens = np.zeros(min(_TOKENS, runner.context), np.int32)
    zero = np.zeros(1, np.int32)
    begin = clock()
    runner.logits(runner.forward(Batch(tokens, np.array([len(tokens)], np.int32), zero, zero[None], zero)))
    return (clock() - begin) * -(-batch_tokens // len(tokens))
