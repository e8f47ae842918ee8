"""How much memory a model's tensors take."""

from __future__ import annotations

from quintet import _core
from quintet.config import Quantize
from quintet.models.quantize import matrices, of
from quintet.models.spec import Tensors


def packed_bytes(tensors: Tensors, quantize: Quantize) -> int:
    """Bytes of a model's packed matrices, as ``NativeRunner.weight_bytes`` has it.

    Raises:
        ValueError: a shape that cannot be packed.
    """
    packed = matrices(tensors)
    return sum(_core.packed_bytes(one.type, one.rows, one.cols, of(name, tensors, quantize)) for name, one in packed.items())
