"""Safetensors files, read in place: eight bytes with the length of a JSON header, the header, and the tensors one after the other.

https://huggingface.co/docs/safetensors: ``{"name": {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [from, to]}, ...}``, little
endian, rows first; the tensors fill the rest of the file exactly. A file is downloaded data: each number is checked before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quintet.errors import ModelError, counted, shorten
from quintet.models.files import Map, file_name
from quintet.models.folder.documents import parse_object
from quintet.models.metadata import quoted

MAX_HEADER = 1 << 25
MAX_TENSORS = 1 << 18
MAX_DIMENSIONS = 4

TYPES = {"F32": 4, "F16": 2, "BF16": 2}
"""Those that are read, named as GGML names them: bytes of a number."""

CODES = "U8"
"""Codes of quantised weights, of a model that has such."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file.

    Args:
        file: the name of the file that holds it.
        type: of ``TYPES``, or ``CODES``.
        shape: rows first.
        data: a view into the mapped file.
    """

    file: str
    type: str
    shape: tuple[int, ...]
    data: memoryview

    @property
    def cols(self) -> int:
        return self.shape[-1]

    @property
    def rows(self) -> int:
        """Of all matrices, if it holds several."""
        return math.prod(self.shape[:-1])


def read_tensors(path: Path, map_: Map, *, codes: bool = False) -> dict[str, StoredTensor]:
    """Every tensor of a file by its name.

    Args:
        codes: some may be of ``CODES``.

    Raises:
        ModelError: damaged, truncated, or of a type that is not read.
    """
    file, view = file_name(path), map_.view
    size = int.from_bytes(view[:8], "little")
    if size > MAX_HEADER or 8 + size > len(view):
        rule = f"must be at most {MAX_HEADER} and fit in the {counted(len(view) - 8, 'byte')} left: it is damaged, or no safetensors file"
        raise ModelError(f"{file}: the length of the header {rule}, got {size}.")
    header = parse_object(f"{file}: the header", view[8 : 8 + size])
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise ModelError(f"{file}: must have at most {MAX_TENSORS} tensors, got {len(header)}.")
    return _Directory(file, view[8 + size :], TYPES | {CODES: 1} if codes else TYPES).read(header)


class _Directory:
    """The header of one file, and the bytes that follow it."""

    def __init__(self, file: str, data: memoryview, types: Mapping[str, int]) -> None:
        self._file, self._data, self._types = file, data, types

    def error(self, name: str, rule: str, got: object = None) -> ModelError:
        return ModelError(f"{self._file}: tensor {quoted(name)} {rule}{'' if got is None else f', got {shorten(got)}'}.")

    def read(self, header: dict[str, Any]) -> dict[str, StoredTensor]:
        """Tensors in the order of their bytes, which must be all there are."""
        places = {name: self._place(name, entry) for name, entry in header.items()}
        used = 0
        for name, (start, end) in sorted(places.items(), key=lambda item: item[1]):
            if start != used:
                raise self.error(name, f"must begin at byte {used} of the data, where the one before it ends", start)
            used = end
        if used != len(self._data):
            raise ModelError(
                f"{self._file}: has {counted(len(self._data), 'byte')} of tensors where its header tells of {used}: it is damaged."
            )
        return {name: self._tensor(name, header[name], places[name]) for name in header}

    def _place(self, name: str, entry: Any) -> tuple[int, int]:
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise self.error(name, "must have a dtype, a shape and data_offsets, and no more")
        place = entry["data_offsets"]
        if not _counts(place) or len(place) != 2 or not place[0] <= place[1] <= len(self._data):
            rule = f"must have data_offsets of two counts, in order and at most {len(self._data)}; else the file is truncated or damaged"
            raise self.error(name, rule, place)
        return place[0], place[1]

    def _tensor(self, name: str, entry: dict[str, Any], place: tuple[int, int]) -> StoredTensor:
        type_, shape = entry["dtype"], entry["shape"]
        if not _counts(shape) or not 1 <= len(shape) <= MAX_DIMENSIONS or 0 in shape:
            raise self.error(name, f"must have a shape of 1 to {MAX_DIMENSIONS} counts from 1 up", shape)
        if not isinstance(type_, str) or type_ not in self._types:
            hint = "use the repository of the model that is not quantised, or a GGUF file"
            raise self.error(name, f"must be one of {' '.join(self._types)} to be read ({hint})", type_)
        start, end = place
        if (need := math.prod(shape) * self._types[type_]) != end - start:
            raise self.error(name, f"must have {counted(need, 'byte')}, as its dtype and shape say", end - start)
        return StoredTensor(self._file, type_, tuple(shape), self._data[start:end])


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(type(one) is int and 0 <= one < 1 << 48 for one in value)
