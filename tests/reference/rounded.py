"""The oracle with the roundings that the engine states, and no other: activations in 8 bits, keys and values in 16.

An engine that is as far from the plain oracle as its roundings explain is close to this one. What remains is where two sums in another
order fall on the two sides of a rounding border.
"""

from __future__ import annotations

import numpy as np
from tests.reference.dequantize import F32
from tests.reference.forward import Reference

BLOCK = 32


class RoundedReference(Reference):
    """``Reference`` with int8 activations per row and block of 32 columns (scale = largest / 127), and float16 keys and values."""

    def rounded(self, x: F32) -> F32:
        blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
        scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
        codes = np.rint(blocks / np.where(scale > 0, scale, 1))
        return np.asarray(codes * scale, dtype=np.float32).reshape(x.shape)

    def cached(self, x: F32) -> F32:
        return x.astype(np.float16).astype(np.float32)
