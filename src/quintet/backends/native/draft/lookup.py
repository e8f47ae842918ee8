"""Where the last tokens of a sequence stood before, and what followed. Plain code over values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

GRAM = 3
"""Tokens that must be the same. Fewer are found everywhere, and say little about what follows."""

PLACES = 8
"""Earlier places looked at, the last ones first; that with the longest common past is taken, as far back as ``PAST`` tokens."""

PAST = 16

REACH = 1 << 15
"""Tokens of a prompt, from its end, that are looked at: bounds the time and memory (about 200 bytes each) of a sequence's index."""


class Lookup:
    """An index of a sequence's tokens that grows with it. A look costs the same however long the sequence is."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}  # tokens -> the place after them, the last one of several
        self._earlier: list[int] = []  # place -> the one before it after the same tokens; 0 = none
        self.extend(prompt[-REACH:])

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """The sequence goes on. Its end is not indexed, as nothing follows there yet."""
        known, last, earlier = self._tokens, self._last, self._earlier
        for token in tokens:
            place = len(known)
            gram = tuple(known[-GRAM:])
            earlier.append(last.get(gram, 0))
            last[gram] = place
            known.append(token)

    def knows(self, token: int) -> bool:
        """Whether there is a guess once the sequence has gone on with this token."""
        return (*self._tokens[-GRAM + 1 :], token) in self._last

    def guess(self, most: int) -> list[int]:
        """At most ``most`` tokens that followed where the sequence's last ones stood before; none if they did not.

        A place so near that the guess reaches the sequence's end goes on with the guess itself: what repeats is taken to repeat on.
        """
        place = self._best()
        if not place:
            return []
        period = len(self._tokens) - place
        return [self._tokens[place + step % period] for step in range(most)]

    def _best(self) -> int:
        known, end = self._tokens, len(self._tokens)
        place = self._last.get(tuple(known[-GRAM:]), 0) if end >= GRAM else 0
        best, longest = 0, 0
        for _ in range(PLACES):
            if not place:
                break
            length = GRAM
            while length < min(PAST, place) and known[place - 1 - length] == known[end - 1 - length]:
                length += 1
            if length > longest:
                best, longest = place, length
            place = self._earlier[place]
        return best
