"""A GGUF file as metadata and float32 matrices, read with the ``gguf`` package only (but for Q1_0)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


def dequantize(data: npt.NDArray[Any], kind: gguf.GGMLQuantizationType) -> F32:
    """The values of rows of a tensor type: float32 [rows, columns]; Q1_0, a sign and a scale per 128, is none of the package's."""
    if kind == gguf.GGMLQuantizationType.Q1_0:
        blocks = np.ascontiguousarray(data).reshape(-1, 18)
        signs = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32) * 2 - 1
        return (signs * blocks[:, :2].copy().view(np.float16).astype(np.float32)).reshape(*data.shape[:-1], -1)
    return np.asarray(gguf.quants.dequantize(data, kind), dtype=np.float32)


class GGUFFile:
    """Metadata and tensors of one GGUF file, memory-mapped.

    Args:
        path: the file.
    """

    def __init__(self, path: Path | str) -> None:
        self._reader = gguf.GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.architecture: str = self.value("general.architecture")

    def value(self, key: str, default: Any = None) -> Any:
        """The metadata value at ``key``."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def setting(self, key: str, default: Any = None) -> Any:
        """The architecture's own value, e.g. ``llama.block_count`` for ``block_count``; ``KeyError`` if absent and without default."""
        found = self.value(f"{self.architecture}.{key}", default)
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> F32:
        """The dequantised tensor, float32, row-major: [rows, columns] or [columns]."""
        found = self._tensors[name]
        return dequantize(found.data, found.tensor_type).reshape(tuple(int(n) for n in reversed(found.shape)))

    def rows(self, name: str, indexes: npt.NDArray[np.int64]) -> F32:
        """Some rows of a dequantised matrix: float32 [len(indexes), columns]."""
        found = self._tensors[name]
        return dequantize(found.data[indexes], found.tensor_type)
