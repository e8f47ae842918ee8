"""A pack's directory: which tensors the file holds, of which model, and their checksums; as a value and as bytes.

::

    0           magic, format, place, size and SHA-256 of the directory, in 64 bytes
    2 MiB       tensors as the core keeps them, each at a multiple of 64, so that matrices can be used where they lie; groups of them begin
                at a multiple of 2 MiB, a huge page
    the end     the directory, as JSON

Whatever is in a file, ``read`` gives a directory whose every place lies within it, or says what is wrong. Numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from collections.abc import Sequence

import msgspec

FORMAT = 1
"""Of all this; raised when it changes."""

MAGIC = b"QuintetP"
START = 2 << 20
ALIGN = 64
PIECE = 1 << 20
"""Bytes of a tensor that have one checksum."""

MAX_DIRECTORY = 1 << 28
SUFFIX = ".pack"
_HEAD = struct.Struct("<8sII8xQ32s")  # 64 bytes
_READ = 1 << 24


class UnusableError(Exception):
    """A file that is no pack, or not a whole one, or another's; its text ends a sentence that begins with the file's name."""


class Source(msgspec.Struct, frozen=True, array_like=True):
    """What tells that a file is the same, and unchanged, without reading it."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Source:
        """Of a file's ``stat``."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """Where a tensor lies.

    Args:
        start, size: bytes.
        sums: of each ``PIECE``.
    """

    name: str
    start: int
    size: int
    sums: tuple[int, ...]


class Kind(msgspec.Struct, frozen=True):
    """What the bits of packed tensors depend on beside the model's file: only packs of the same kind are used.

    Args:
        numerics: see ``weights.NUMERICS``.
        layout: of the tiles, see csrc/kernels/pack.h.
        quantize: what becomes of float weights.
    """

    numerics: str
    layout: int
    quantize: str
    byteorder: str = sys.byteorder


class Directory(msgspec.Struct, frozen=True):
    """
    Args:
        digest: of the model's files, see ``weights.Digest``.
        sources: those files, as they were when they were read.
        settled: they had not been written for a while then, so that a later change cannot have left them looking the same.
        stamp: what the pack's own ``mtime`` is, in nanoseconds, once all of it is on the disk and as long as nobody has written to it.
    """

    kind: Kind
    digest: str
    sources: tuple[Source, ...]
    settled: bool
    stamp: int
    tensors: tuple[Tensor, ...]

    @property
    def end(self) -> int:
        """Where the data end."""
        return max((tensor.start + tensor.size for tensor in self.tensors), default=START)

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size for tensor in self.tensors)


def write(file: int, directory: Directory) -> None:
    """Put a directory after the data, in place of the one that may be there."""
    text = msgspec.json.encode(directory)
    write_views(file, [memoryview(text)], directory.end)
    os.ftruncate(file, directory.end + len(text))
    head = _HEAD.pack(MAGIC, FORMAT, len(text), directory.end, hashlib.sha256(text).digest())
    write_views(file, [memoryview(head)], 0)


def write_views(file: int, views: Sequence[memoryview], at: int) -> None:
    """All of them, one after the other, however little the system takes at a time."""
    left = [view for view in views if view]
    while left:
        written = os.pwritev(file, left, at)
        at += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left:
            left[0] = left[0][written:]


def read(file: int) -> Directory:
    """The directory of an open file.

    Raises:
        UnusableError: it is not a whole pack of this format.
    """
    total = os.fstat(file).st_size
    head = os.pread(file, _HEAD.size, 0)
    if len(head) < _HEAD.size or not head.startswith(MAGIC):
        raise UnusableError("is not a pack")
    _, format_, size, at, digest = _HEAD.unpack(head)
    if format_ != FORMAT:
        raise UnusableError(f"is of format {format_}, and this version writes {FORMAT}")
    if size > MAX_DIRECTORY or at < START or at + size != total:
        raise UnusableError("is cut short or damaged")
    text = bytearray()
    while len(text) < size and (more := os.pread(file, min(_READ, size - len(text)), at + len(text))):
        text += more
    if hashlib.sha256(text).digest() != digest:
        raise UnusableError("has a damaged directory")
    try:
        found = msgspec.json.decode(text, type=Directory)
    except msgspec.DecodeError:
        raise UnusableError("has a directory of another kind") from None
    _check(found, at)
    return found


def _check(directory: Directory, end: int) -> None:
    used, names = START, set()
    for tensor in directory.tensors:
        if tensor.start < used or tensor.start % ALIGN or tensor.size < 1 or tensor.start + tensor.size > end:
            raise UnusableError(f"has tensor {tensor.name!r} at a place that cannot be")
        if len(tensor.sums) != -(-tensor.size // PIECE) or not all(0 <= one < 1 << 32 for one in tensor.sums):
            raise UnusableError(f"has not the checksums of tensor {tensor.name!r}")
        used = tensor.start + tensor.size
        names.add(tensor.name)
    if len(names) != len(directory.tensors):
        raise UnusableError("names a tensor twice")
