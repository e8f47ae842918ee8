"""Token ids of a text that grows, in time that depends on what is new and not on how long it is.

Only the end is encoded, from some way before what is new. It is joined to the ids before where both say the same: a run of tokens of a
byte-pair encoding is right if each pair of neighbours is, so two right ones that share a token are one when joined there; and how a text is
first cut into words is settled within a few words. Where no such place is found, and for a vocabulary whose pieces do not spell the text,
everything is encoded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

BACK = 512
"""Characters before what is new that are encoded again."""

AGREED = 8
"""Tokens in a row that must be the same."""


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
            found = await self._from_end(text)
            self._ids = list(await self._encode(text)) if found is None else found
            self._text = text
        return self._ids

    async def _from_end(self, text: str) -> list[int] | None:
        """``None`` if it cannot be told from the end."""
        same = _same(self._text, text)
        start = same - BACK
        if start <= 0:
            return None
        old = self._text[start:].encode()
        kept, at = self._last(len(old))
        while at < len(old) and 0x80 <= old[at] < 0xC0:  # inside a character
            at += len(self._pieces[self._ids[kept]])
            kept += 1
        old = old[at:]
        if kept == 0 or b"".join(self._pieces[one] for one in self._ids[kept:]) != old:
            return None
        tail = text[len(self._text) - len(old.decode()) :]
        found = list(await self._encode(tail))
        spelled = b"".join(self._pieces[one] for one in found)
        before = len(spelled) - len(tail.encode())  # a space that some vocabularies put before each text
        if before < 0 or spelled[before:] != tail.encode():
            return None
        joint = _joint(self._places(self._ids[kept:], 0), self._places(found, -before), len(self._text[same:].encode()), len(old))
        return None if joint is None else self._ids[: kept + joint[0]] + found[joint[1] :]

    def _last(self, size: int) -> tuple[int, int]:
        """The first of the last tokens that have at most ``size`` bytes, and by how many they have fewer."""
        at = len(self._ids)
        while at and (length := len(self._pieces[self._ids[at - 1]])) <= size:
            at, size = at - 1, size - length
        return at, size

    def _places(self, ids: Sequence[int], at: int) -> list[tuple[int, int]]:
        """Of each token where it begins, in bytes, and its id."""
        found = []
        for one in ids:
            found.append((at, one))
            at += len(self._pieces[one])
        return found


def _same(one: str, other: str) -> int:
    """How many characters they begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _joint(old: Sequence[tuple[int, int]], new: Sequence[tuple[int, int]], changed: int, size: int) -> tuple[int, int] | None:
    """Where both have the same tokens at the same places, before the old one's last ``changed`` of ``size`` bytes; as positions in each."""
    places = {place: at for at, place in enumerate(new)}
    row = 0
    for at, place in enumerate(old):
        if place[0] >= size - changed:
            return None
        row = row + 1 if place in places and (row == 0 or places[place] == places[old[at - 1]] + 1) else 0
        if row == AGREED:
            return at, places[place]
    return None
