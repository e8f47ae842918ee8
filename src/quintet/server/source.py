"""Time and randomness, which tests give their own of."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from quintet.request import FRESH_SEED_BITS


@dataclass(frozen=True, slots=True)
class Source:
    """Time and randomness; tests give their own."""

    now: Callable[[], float] = time.time
    token: Callable[[], str] = lambda: secrets.token_hex(16)
    host: Callable[[], str] = socket.gethostname
    seed: Callable[[], int] = lambda: secrets.randbits(FRESH_SEED_BITS)
    clock: Callable[[], float] = time.monotonic
