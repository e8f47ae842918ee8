"""How much memory a model's tensors take."""

from __future__ import annotations

from quintet import _core
from quintet.config import Quantize
from quintet.models.spec import Tensors


def packed_bytes(matrices: Tensors, quantize: Quantize) -> int:
    """Bytes of packed matrices, as ``NativeRunner.weight_bytes`` has it.

    Raises:
        ValueError: a shape that cannot be packed.
    """
    return sum(_core.packed_bytes(one.type, one.rows, one.cols, quantize) for one in matrices.values())
