"""The bytes of a vocabulary's tokens, as one blob: fifty thousand objects of their own would take 4 MB in each process."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import overload


class Pieces(Sequence[bytes]):
    """The bytes of each token id, in order.

    Args:
        blob: of all, one after the other.
        ends: uint32 [n], where each ends.

    Raises:
        ValueError: the blob does not end where the last one does.
    """

    __slots__ = ("_blob", "_ends")

    def __init__(self, blob: bytes, ends: array[int]) -> None:
        self._blob, self._ends = blob, ends
        if (ends[-1] if ends else 0) != len(blob):
            raise ValueError("the pieces do not end where they are said to")

    @classmethod
    def of(cls, pieces: Sequence[bytes], least: int = 0) -> Pieces:
        """The same pieces, and empty ones up to ``least`` in all."""
        made = pieces if isinstance(pieces, Pieces) else cls(b"".join(pieces), array("I", accumulate(map(len, pieces))))
        more = least - len(made)
        return cls(made._blob, made._ends + array("I", [len(made._blob)]) * more) if more > 0 else made

    @property
    def blob(self) -> bytes:
        """All bytes."""
        return self._blob

    @property
    def ends(self) -> array[int]:
        """Where each ends."""
        return self._ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if type(index) is int and index > 0:
            return self._blob[self._ends[index - 1] : self._ends[index]]
        if isinstance(index, slice):
            return [self[token] for token in range(*index.indices(len(self._ends)))]
        end = self._ends[index]
        return self._blob[self._ends[index - 1] if index and index != -len(self._ends) else 0 : end]

    def __iter__(self) -> Iterator[bytes]:
        blob, start = self._blob, 0
        for end in self._ends:
            yield blob[start:end]
            start = end

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pieces) and (self._blob, self._ends) == (other._blob, other._ends)

    def __hash__(self) -> int:
        return hash((self._blob, len(self._ends)))
