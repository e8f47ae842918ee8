"""GGUF files.

The library ``gguf`` has a reader, which makes several numpy objects per vocabulary entry (4 s and 150 MB for the 98 MB default model)
and trusts every count in the file; a model file is downloaded data, so here each length is checked against the bytes left
before anything is read or allocated, and whatever is wrong becomes a ``ModelError`` of one line.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from quintet.errors import ModelError, counted, shorten
from quintet.models import ggml
from quintet.models.files import Map, file_name, split_parts
from quintet.models.ggml import ALIGNMENT, MAGIC, TensorType, ValueType
from quintet.models.layout import Place, TensorInfo, expected_tensors
from quintet.models.metadata import Metadata, StringArray, Value, quoted, show
from quintet.models.opened import ModelFile, forgetting
from quintet.models.reading import ARCHITECTURE, read_spec
from quintet.models.spec import RawTensor
from quintet.models.texts import string_ends

VERSIONS = (2, 3)
MIN_SIZE = 24
"""Bytes of a file of nothing: magic number, version and two counts."""
TENSOR_TYPES = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0",
)  # fmt: skip
"""What the native core reads (``csrc/kernels/pack.cpp``): all that files hold. The others of GGML are formats of sums, or whole numbers."""
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_STRING = 1 << 24
MAX_STRINGS = 1 << 22
MAX_SCALARS = 1 << 48
MAX_ALIGNMENT = 1 << 20

SCALARS: dict[ValueType, Literal["B", "b", "H", "h", "I", "i", "f", "?", "Q", "q", "d"]] = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}


def open_model(path: Path) -> ModelFile:
    """Open a GGUF file of a supported architecture, or all files of a model that is split, of which ``path`` is one.

    Raises:
        ModelError: not readable, not GGUF, damaged, not whole, or asking for something this server does not implement.
    """
    files = [_Reader(part) for part in split_parts(path)]
    metadata, infos, readers = _join(files)
    spec = read_spec(metadata, infos, lambda name: readers[name].floats(name, infos[name]))
    places = expected_tensors(spec, metadata, infos)
    tensors = {ours: readers[place.tensor].tensor(place, infos[place.tensor]) for ours, place in places.items()}
    return ModelFile(metadata, spec, tensors, forgetting([file.map for file in files]))


@dataclass(frozen=True, slots=True)
class TensorFile:
    """An open GGUF file of any architecture.

    Args:
        read: the bytes of a tensor.
        forget: see ``ModelFile``.
    """

    metadata: Metadata
    infos: Mapping[str, TensorInfo]
    read: Callable[[TensorInfo], memoryview]
    forget: Callable[[], None]


def open_tensors(path: Path) -> TensorFile:
    """Open a GGUF file of any architecture.

    Raises:
        ModelError: not readable, not GGUF, damaged, or with a tensor of a type that is not read.
    """
    reader = _Reader(path)
    metadata, infos = reader.header()
    for name, info in infos.items():
        reader.check_type(name, info)
    return TensorFile(metadata, infos, reader.raw, forgetting([reader.map]))


def read_metadata(path: Path) -> Metadata:
    """Only the key-value pairs of a GGUF file (a vocabulary file has no tensors); of a split model's, the first part's.

    Raises:
        ModelError: not readable, not GGUF, or damaged.
    """
    return _Reader(split_parts(path)[0]).header()[0]


def _join(readers: Sequence[_Reader]) -> tuple[Metadata, Mapping[str, TensorInfo], Mapping[str, _Reader]]:
    """The metadata of the first part, which has all of it, and every part's tensors with the reader of each.

    Raises:
        ModelError: also if the files are not the parts of one model, each once and in their order.
    """
    metadata, infos = readers[0].header()
    total = _check_part(metadata, 0, len(readers))
    found = dict.fromkeys(infos, readers[0])
    for number, reader in enumerate(readers[1:], 1):
        own, more = reader.header()
        for key, want in (("split.tensors.count", total), (ARCHITECTURE, metadata.get(ARCHITECTURE))):
            if key in own and own.get(key) != want:
                raise own.error(key, f"must be {show(want)}, as in {metadata.file}: this is a part of another model", own.get(key))
        _check_part(own, number, len(readers))
        if twice := sorted(more.keys() & infos.keys()):
            raise reader.error(f"tensor {quoted(twice[0])}", f"is in {found[twice[0]].file} as well")
        infos |= more
        found |= dict.fromkeys(more, reader)
    if len(readers) > 1 and total != len(infos):
        raise metadata.error("split.tensors.count", f"must be {len(infos)}, the number of tensors in all parts", total)
    return metadata, infos, found


def _check_part(metadata: Metadata, number: int, count: int) -> int:
    """The tensors of all parts, as the one of this number (from 0) has it; 0 if the model is not split."""
    if count == 1:
        said = metadata.integer("split.count", 1, low=0)
        if said > 1:
            raise metadata.error("split.count", f"asks for files that are named NAME-00001-of-{said:05}.gguf and so on", said)
        return 0
    for key, want in (("split.count", count), ("split.no", number)):
        if metadata.integer(key, low=0) != want:
            raise metadata.error(key, f"must be {want}, as the file's name says", metadata.get(key))
    return metadata.integer("split.tensors.count", low=0)


class _Reader:
    """A bounds-checked cursor over the mapped file."""

    def __init__(self, path: Path) -> None:
        self.file = file_name(path)
        self.map = Map(path, MIN_SIZE)
        self.view = self.map.view
        self.size = len(self.view)
        self.at = 0
        self.data_start = 0

    def error(self, what: str, rule: str, got: object = None) -> ModelError:
        return ModelError(f"{self.file}: {what} {rule}{'' if got is None else f', got {shorten(got)}'}.")

    def take(self, size: int, what: str) -> int:
        """Advance over ``size`` bytes; the offset they start at."""
        start, left = self.at, self.size - self.at
        if size > left:
            raise self.error(
                what, f"needs {counted(size, 'byte')} but the file has {left} left at byte {start}: it is truncated or damaged"
            )
        self.at = start + size
        return start

    def number(self, format_: str, size: int, what: str) -> int:
        value: int = struct.unpack_from(format_, self.view, self.take(size, what))[0]
        return value

    def u32(self, what: str) -> int:
        return self.number("<I", 4, what)

    def u64(self, what: str) -> int:
        return self.number("<Q", 8, what)

    def count(self, what: str, limit: int, item_size: int) -> int:
        """A count of items of at least ``item_size`` bytes each, which the rest of the file must be able to hold."""
        count, left = self.u64(what), self.size - self.at
        if count > limit:
            raise self.error(what, f"must be at most {limit}", count)
        if count * item_size > left:
            needs = f"is {count}, which needs at least {counted(count * item_size, 'byte')}"
            raise self.error(what, f"{needs} but the file has {left} left at byte {self.at}: it is truncated or damaged")
        return count

    def string(self, what: str) -> str:
        length = self.u64(f"the length of {what}")
        if length > MAX_STRING:
            raise self.error(f"the length of {what}", f"must be at most {MAX_STRING}", length)
        start = self.take(length, what)
        try:
            return str(self.view[start : self.at], "utf-8")
        except UnicodeDecodeError:
            raise self.error(what, "must be UTF-8", bytes(self.view[start : min(self.at, start + 40)])) from None

    def header(self) -> tuple[Metadata, dict[str, TensorInfo]]:
        if self.u32("the magic number") != MAGIC:
            raise self.error("the file", "is not GGUF: it must begin with b'GGUF'", bytes(self.view[:4]))
        version = self.u32("the version")
        if version not in VERSIONS:
            raise self.error("the GGUF version", f"must be one of {VERSIONS} (little-endian)", version)
        tensors = self.count("the number of tensors", MAX_TENSORS, 8 + 4 + 4 + 8)
        keys = self.count("the number of keys", MAX_KEYS, 8 + 4 + 1)
        metadata = Metadata(self.file, self.pairs(keys))
        infos = dict(self.tensor_info(i) for i in range(tensors))
        if len(infos) != tensors:
            raise self.error("the tensor list", "names a tensor twice")
        self.place(metadata, infos)
        return metadata, infos

    def pairs(self, count: int) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for i in range(count):
            key = self.string(f"key {i}")
            if not key or key in values:
                raise self.error(f"key {i}", "must be a new, non-empty name", key)
            values[key] = self.value(key, self.value_type(key))
        return values

    def value_type(self, key: str) -> ValueType:
        raw = self.u32(f"the type of {quoted(key)}")
        try:
            return ValueType(raw)
        except ValueError:
            raise self.error(f"the type of {quoted(key)}", "is not a GGUF value type", raw) from None

    def value(self, key: str, type_: ValueType) -> Value:
        if type_ is ValueType.STRING:
            return self.string(f"{quoted(key)}")
        if type_ is ValueType.ARRAY:
            return self.array(key)
        item: bool | int | float = self.items(key, type_, 1)[0]
        return item

    def array(self, key: str) -> Value:
        type_ = self.value_type(key)
        what = f"the length of {quoted(key)}"
        if type_ is ValueType.STRING:
            return self.strings(key, self.count(what, MAX_STRINGS, 8))
        if type_ is ValueType.ARRAY:
            raise self.error(f"{quoted(key)}", "is an array of arrays, which is not supported")
        return self.items(key, type_, self.count(what, MAX_SCALARS, struct.calcsize(SCALARS[type_])))

    def items(self, key: str, type_: ValueType, count: int) -> memoryview[Any]:
        format_ = SCALARS[type_]
        start = self.take(count * struct.calcsize(format_), f"{quoted(key)}")
        if not count:  # an empty view cannot be cast
            return memoryview(array("Q"))
        found = self.view[start : self.at]
        if type_ is ValueType.BOOL and max(found) > 1:
            raise self.error(f"{quoted(key)}", "must be 0 or 1, being a boolean", max(found))
        return found.cast(format_)

    def strings(self, key: str, count: int) -> StringArray:
        """Walk over the strings, keeping only where they are."""
        begin, ends = self.at, string_ends(self.view[self.at :], count)
        self.at += ends[-1] if ends else 0
        if len(ends) < count:
            what = f"entry {len(ends)} of {quoted(key)}"
            raise self.error(what, f"runs past the end: the file is truncated or damaged at byte {self.at}")
        return StringArray(self.view[begin : self.at], ends)

    def tensor_info(self, index: int) -> tuple[str, TensorInfo]:
        name = self.string(f"the name of tensor {index}")
        what = f"tensor {quoted(name)}"
        dims = self.u32(f"the number of dimensions of {what}")
        if not 1 <= dims <= 4:
            raise self.error(f"the number of dimensions of {what}", "must be from 1 to 4", dims)
        shape = tuple(self.u64(f"a dimension of {what}") for _ in range(dims))
        raw, offset = self.u32(f"the type of {what}"), self.u64(f"the offset of {what}")
        type_ = ggml.TYPES.get(raw)
        if type_ is None:
            raise self.error(f"the type of {what}", "is not a known tensor type", raw)
        return name, TensorInfo(type_.name, shape, offset, self.byte_size(what, type_, shape))

    def byte_size(self, what: str, type_: TensorType, shape: tuple[int, ...]) -> int:
        block = type_.block
        count = 1
        for dim in shape:
            count *= dim
            if dim < 1 or count > 1 << 48:
                raise self.error(f"the shape of {what}", "must have dimensions from 1 up and a sane product", list(shape))
        if shape[0] % block:
            raise self.error(f"the first dimension of {what}", f"must be a multiple of {block}, the block size of {type_.name}", shape[0])
        return count // block * type_.size

    def place(self, metadata: Metadata, infos: dict[str, TensorInfo]) -> None:
        """Find where tensor data starts and check that every tensor lies inside the file and on no other."""
        align = metadata.integer("general.alignment", ALIGNMENT, high=MAX_ALIGNMENT)
        if align & (align - 1):
            raise metadata.error("general.alignment", "must be a power of two", align)
        self.data_start = (self.at + align - 1) // align * align
        room, used = self.size - self.data_start, 0
        for name, info in sorted(infos.items(), key=lambda item: item[1].offset):
            what = f"tensor {quoted(name)}"
            if info.offset % align:
                raise self.error(f"the offset of {what}", f"must be a multiple of {align}", info.offset)
            if info.offset < used:
                raise self.error(f"the offset of {what}", f"lies inside the tensor before it, which ends at {used}", info.offset)
            used = info.offset + info.size
            if used > room:
                raise self.error(
                    what, f"ends at byte {used} of {counted(max(room, 0), 'byte')} of tensor data: the file is truncated or damaged"
                )

    def raw(self, info: TensorInfo) -> memoryview:
        start = self.data_start + info.offset
        return self.view[start : start + info.size]

    def floats(self, name: str, info: TensorInfo) -> Sequence[float]:
        if info.type != "F32":
            raise self.error(f"the type of tensor {quoted(name)}", "must be F32", info.type)
        return self.raw(info).cast("f")

    def check_type(self, name: str, info: TensorInfo) -> None:
        if info.type not in TENSOR_TYPES:
            raise self.error(f"the type of tensor {quoted(name)}", f"must be one of {' '.join(TENSOR_TYPES)}", info.type)

    def tensor(self, place: Place, info: TensorInfo) -> RawTensor:
        self.check_type(place.tensor, info)
        row = info.size // info.rows
        rows = place.rows or 1
        return RawTensor(info.type, rows, info.cols, (self.raw(info)[place.start * row : (place.start + rows) * row],))
