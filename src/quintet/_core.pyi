"""The native extension, as ``backends/native/core.py`` sees it. Shapes and rules: there, and in csrc/*.h."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

def isas() -> list[str]: ...
def score(
    logits: npt.NDArray[np.float32], targets: npt.NDArray[np.int32], k: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.float32]]: ...
def sample(
    logits: npt.NDArray[np.float32],
    temperature: npt.NDArray[np.float32],
    top_p: npt.NDArray[np.float32],
    seeds: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.uint64],
) -> npt.NDArray[np.int32]: ...
def uniform(seed: int, position: int) -> float: ...
def dequantize(type: str, rows: int, cols: int, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]: ...  # noqa: A002 - the C++ name
def pack_roundtrip(
    type: str,  # noqa: A002 - the C++ name
    rows: int,
    cols: int,
    raw: npt.NDArray[np.uint8],
    row_order: Sequence[int] = ...,
) -> npt.NDArray[np.float32]: ...

class Model:
    def __init__(self, config: Mapping[str, object], isa: str, threads: int) -> None: ...
    def set(self, name: str, type: str, rows: int, cols: int, data: npt.NDArray[np.uint8]) -> None: ...  # noqa: A002 - the C++ name
    def finish(self) -> None: ...
    def allocate(self, pages: int) -> None: ...
    def copy_page(self, source: int, target: int) -> None: ...
    def forward(
        self,
        tokens: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
        starts: npt.NDArray[np.int32],
        tables: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.uint8]: ...
    def logits(self, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]: ...
    @property
    def isa(self) -> str: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
