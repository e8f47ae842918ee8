"""The bytes of a vocabulary's tokens, as one blob: fifty thousand objects of their own would take 4 MB in each process."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import overload


class Pieces(Sequence[bytes]):
    """The bytes of each token id, in order.

    Args:
        blob: of all, one after the other.
        lengths: of each.

    Raises:
        ValueError: the lengths do not add up to the blob.
    """

    __slots__ = ("_blob", "_ends")

    def __init__(self, blob: bytes, lengths: Iterable[int]) -> None:
        self._blob, self._ends = blob, array("I", accumulate(lengths))
        if (self._ends[-1] if self._ends else 0) != len(blob):
            raise ValueError("the lengths of the pieces do not add up")

    @classmethod
    def of(cls, pieces: Sequence[bytes], least: int = 0) -> Pieces:
        """The same pieces, and empty ones up to ``least`` in all."""
        lengths = chain(map(len, pieces), repeat(0, least - len(pieces)))
        return cls(pieces._blob if isinstance(pieces, Pieces) else b"".join(pieces), lengths)

    @property
    def blob(self) -> bytes:
        """All bytes."""
        return self._blob

    @property
    def lengths(self) -> list[int]:
        """The length of each."""
        return [end - start for start, end in zip(chain((0,), self._ends), self._ends, strict=False)]

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
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
