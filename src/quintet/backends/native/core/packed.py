"""What packs need of the compiled core beside the model: checksums, and memory on huge pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quintet import _core
from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.types import U8, U32

LAYOUT: int = _core.LAYOUT
"""Version of the tiles that a matrix is packed into; see csrc/kernels/pack.h."""


def checksums(cpu: Cpu, data: U8, pieces: Sequence[tuple[int, int]]) -> U32:
    """Of each piece ``data[start : start + size]``, what csrc/checksum.h says; computed by all threads.

    Args:
        pieces: start and size.

    Raises:
        ValueError: a piece is not within the data.
    """
    starts, sizes = np.array(pieces, np.int64).reshape(-1, 2).T
    return _core.checksums(cpu, data, np.ascontiguousarray(starts), np.ascontiguousarray(sizes))


def huge_copy(cpu: Cpu, data: U8) -> U8:
    """A copy on huge pages, as far as the system grants them; made by all threads.

    Raises:
        MemoryError: there is no room for it.
    """
    return _core.huge_copy(cpu, data)
