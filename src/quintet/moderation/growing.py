"""Token ids of a text that grows, in time that depends on what is new and not on how long it is.

Only the end is encoded, from some way before what is new. It is joined to the ids before where both say the same: a run of tokens of a
byte-pair encoding is right if each pair of neighbours is, so two right ones that share a token are one when joined there; and how a text is
first cut into words is settled within a few words. Where no such place is found, and for a vocabulary whose pieces do not spell the text,
everything is encoded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

BACK = 512
"""Characters before what is new that are encoded again."""

AGREED = 8
"""Tokens in a row that must be the same."""


class _Place(NamedTuple):
    """A token and the byte at which it begins."""

    offset: int
    token: int


class _Joint(NamedTuple):
    """The index of the same token among the old ones and among the new ones."""

    old: int
    new: int


class Growing:
    """A text that is encoded again and again.

    Args:
        encode: what encodes; what the ids of a longer text are depends on nothing else.
        pieces: of each id, its bytes.
    """

    def __init__(self, encode: Callable[[str], Awaitable[Sequence[int]]], pieces: Sequence[bytes]) -> None:
        self._encode, self._pieces = encode, pieces
        self._text = ""
        self._ids: list[int] = []

    async def ids(self, text: str) -> list[int]:
        """What ``encode`` gives."""
        if text != self._text:
            joined = await self._from_end(text)
            self._ids = list(await self._encode(text)) if joined is None else joined
            self._text = text
        return self._ids

    async def _from_end(self, text: str) -> list[int] | None:
        """The ids of a text, of which only the end is encoded; ``None`` if that cannot be told from the end."""
        common = _common_prefix(self._text, text)
        if common <= BACK:
            return None
        old = self._text[common - BACK :].encode()
        kept, offset = self._last(len(old))
        while offset < len(old) and 0x80 <= old[offset] < 0xC0:  # inside a character
            offset += len(self._pieces[self._ids[kept]])
            kept += 1
        old = old[offset:]
        if kept == 0 or self._spelled(self._ids[kept:]) != old:
            return None
        tail = text[len(self._text) - len(old.decode()) :]
        tail_ids = list(await self._encode(tail))
        spelled = self._spelled(tail_ids)
        before = len(spelled) - len(tail.encode())  # a space that some vocabularies put before each text
        if before < 0 or spelled[before:] != tail.encode():
            return None
        unchanged = len(old) - len(self._text[common:].encode())
        joint = _joint(self._places(self._ids[kept:], 0), self._places(tail_ids, -before), unchanged)
        return None if joint is None else self._ids[: kept + joint.old] + tail_ids[joint.new :]

    def _spelled(self, ids: Sequence[int]) -> bytes:
        return b"".join(self._pieces[token] for token in ids)

    def _last(self, size: int) -> tuple[int, int]:
        """The index of the first of the last tokens that have at most ``size`` bytes, and by how many they have fewer."""
        index = len(self._ids)
        while index and (length := len(self._pieces[self._ids[index - 1]])) <= size:
            index, size = index - 1, size - length
        return index, size

    def _places(self, ids: Sequence[int], offset: int) -> list[_Place]:
        """Those of tokens, of which the first begins at ``offset``."""
        places: list[_Place] = []
        for token in ids:
            places.append(_Place(offset, token))
            offset += len(self._pieces[token])
        return places


def _common_prefix(one: str, other: str) -> int:
    """How many characters they begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _joint(old: Sequence[_Place], new: Sequence[_Place], unchanged: int) -> _Joint | None:
    """The last of ``AGREED`` tokens in a row that both have at the same places, in the first ``unchanged`` bytes."""
    indices = {place: index for index, place in enumerate(new)}
    row = 0
    for at, place in enumerate(old):
        if place.offset >= unchanged:
            return None
        index = indices.get(place)
        goes_on = index is not None and (row == 0 or index == indices[old[at - 1]] + 1)
        row = row + 1 if goes_on else 0
        if row == AGREED:
            return _Joint(at, indices[place])
    return None
