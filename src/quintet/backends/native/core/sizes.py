"""How much memory tensors take. Imports no numpy: a front tells it too."""

from __future__ import annotations

from quintet import _core
from quintet.models.spec import RawTensor

_BLOCK = 32


def packed_bytes(tensor: RawTensor) -> int:
    """Bytes that a tensor takes when it is packed. Vectors are kept as floats."""
    if tensor.rows == 1 or tensor.cols % _BLOCK:
        return 4 * tensor.rows * tensor.cols
    return _core.packed_bytes(tensor.type, tensor.rows, tensor.cols, tensor.quantize)
