"""What only tests ask of the native core; built beside it in an editable install, and in no wheel."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quintet._core import Cpu, Sampler

def dequantize(type: str, rows: int, cols: int, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]: ...  # noqa: A002 - the C++ name
def tensor_types() -> list[str]: ...
def pack_roundtrip(
    type: str,  # noqa: A002 - the C++ name
    rows: int,
    cols: int,
    raw: npt.NDArray[np.uint8],
    row_order: Sequence[int] = ...,
    quantize: str = ...,
) -> npt.NDArray[np.float32]: ...
def product(
    cpu: Cpu,
    type: str,  # noqa: A002 - the C++ name
    rows: int,
    cols: int,
    raw: npt.NDArray[np.uint8],
    x: npt.NDArray[np.float32],
) -> npt.NDArray[np.float32]: ...
def checksum_portable(data: npt.NDArray[np.uint8]) -> int: ...
def uniform(seed: int, position: int, word: int) -> float: ...
def distribution(
    cpu: Cpu, sampler: Sampler, logits: npt.NDArray[np.float32], position: int, masks: npt.NDArray[np.uint32] | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]: ...
def surprise_bound(sampler: Sampler) -> float: ...
