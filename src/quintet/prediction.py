"""A text that a client predicts: how far an output follows it. Plain code over token ids.

The engine drafts by it and the usage counts by it, so the two cannot disagree.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

GRAM = 3
"""Tokens in a row that must be the same for an output that left the prediction to be in it again. Fewer are found everywhere."""

REACH = 1 << 15
"""Tokens of a prediction that count, from its beginning: bounds the time and memory of its index."""


class Predicted:
    """What a client predicts, for all outputs that may follow it: its index is made once, when the first of them may be in it again.

    Args:
        tokens: those after ``REACH`` do not count.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens[:REACH])
        self._places: dict[tuple[int, ...], list[int]] | None = None  # ``GRAM`` tokens -> where they begin

    def find(self, gram: tuple[int, ...], start: int) -> int | None:
        """The first place from ``start`` on where these ``GRAM`` tokens stand."""
        if self._places is None:
            self._places = self._index()
        places = self._places.get(gram, [])
        first = bisect_left(places, start)
        return places[first] if first < len(places) else None

    def _index(self) -> dict[tuple[int, ...], list[int]]:
        places: dict[tuple[int, ...], list[int]] = {}
        for place, gram in enumerate(zip(*(self.tokens[skipped:] for skipped in range(GRAM)), strict=False)):
            if gram in places:
                places[gram].append(place)
            else:
                places[gram] = [place]
        return places


class Follower:
    """Where one output stands in a prediction, told its tokens one by one.

    It follows token by token from the beginning. Where the output has another token than the prediction it has left it, and is in it again
    as soon as its last ``GRAM`` tokens stand somewhere in what is left of the prediction, in the first such place. So a token of the
    prediction counts at most once, and in order::

        prediction   a b c d e f g h
        output       a b X d e f h            a b, and d e f once all three are there; h alone is not found again
    """

    def __init__(self, predicted: Predicted) -> None:
        self.matched = 0
        """Tokens of the prediction that the output has."""
        self._predicted = predicted
        self._at = 0  # of the prediction, the first token that has not been passed
        self._inside = True
        self._last: tuple[int, ...] = ()

    def feed(self, token: int) -> None:
        """The output's next token."""
        tokens = self._predicted.tokens
        if self._inside and self._at < len(tokens) and tokens[self._at] == token:
            self.matched += 1
            self._at += 1
            self._last = ()
            return
        self._inside = False
        self._last = (*self._last, token)[-GRAM:]
        if (place := self._find()) is not None:
            self.matched += GRAM
            self._at, self._inside, self._last = place + GRAM, True, ()

    def guess(self, most: int) -> Sequence[int]:
        """At most ``most`` tokens that the prediction goes on with; none if the output is not in it."""
        return self._predicted.tokens[self._at : self._at + most] if self._inside else ()

    def _find(self) -> int | None:
        if len(self._last) < GRAM or self._at + GRAM > len(self._predicted.tokens):
            return None
        return self._predicted.find(self._last, self._at)
