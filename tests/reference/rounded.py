"""The oracle with the roundings that the engine states, and no other: activations in 8 bits, keys and values in 16, or in 8.

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


class Rounded8Reference(RoundedReference):
    """The same with ``--kv-type q8``: int8 keys and values with a float16 scale for each token and head, rotated for that."""

    def cached(self, x: F32) -> F32:
        turn = rotation(x.shape[-1])
        return np.asarray(in_bytes(x @ turn) @ turn / rotated(x.shape[-1]), dtype=np.float32)


def rotated(width: int) -> int:
    """Dimensions that are rotated together: the largest power of two that divides the head's."""
    return width & -width


def rotation(width: int) -> F32:
    """Sylvester's Hadamard matrix of ``rotated(width)`` along the diagonal, symmetric, not scaled: [width, width]."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < rotated(width):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.kron(np.eye(width // len(matrix), dtype=np.float32), matrix)


CANDIDATES = 1 + np.float32(0.004) * np.arange(16, dtype=np.float32)
"""Times the least scale: which is the largest magnitude / 127 along the last axis, as float16, rounded up."""


def in_bytes(x: F32) -> F32:
    """As int8 with the one of ``CANDIDATES`` that comes closest, and back."""
    least = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    near = least.astype(np.float16)
    up = np.where(near < least, np.nextafter(near, np.float16(np.inf)), near)
    scales = [up, *((least * factor).astype(np.float16) for factor in CANDIDATES[1:])]
    rounded = np.stack([np.rint(x / np.where(scale > 0, scale, 1)) * scale for scale in (one.astype(np.float32) for one in scales)])
    error = np.where(np.stack(scales) >= least, ((rounded - x) ** 2).sum(axis=-1, keepdims=True), np.inf)
    best = error.argmin(axis=0, keepdims=True)
    return np.asarray(np.take_along_axis(rounded, best, axis=0)[0], dtype=np.float32)
