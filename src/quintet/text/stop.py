"""Literal stop strings over text that arrives in pieces of any size.

Which match wins: the stop string that completes at the earliest character; among those that complete at the same character the longest,
that is the one that starts first. Matching is Knuth-Morris-Pratt per string: linear in the text, whatever the strings are.
"""

from __future__ import annotations

from collections.abc import Iterable

MOST_KEPT = 1 << 16
"""Most counts that are kept of where characters lead, one for each string: a megabyte or two for a request."""

Place = tuple[int, ...]
"""Where the searches stand: of each stop string how many characters the text ends with, less than all."""


class Pattern:
    """One stop string; holds no state of a search, so that all choices of a request share it.

    Raises:
        ValueError: the string is empty.
    """

    __slots__ = ("_borders", "text")

    def __init__(self, text: str) -> None:
        if not text:
            raise ValueError("a stop string must not be empty")
        self.text = text
        self._borders = [0, 0]

    def step(self, char: str, matched: int) -> tuple[int, bool]:
        """Continue a search by a character.

        Args:
            matched: characters of the stop string that the text before ended with, less than all.

        Returns:
            The same count after ``char``, and whether the string completed with it.
        """
        want = self.text
        while matched and want[matched] != char:
            matched = self._border(matched)
        matched += want[matched] == char
        return (self._border(matched), True) if matched == len(want) else (matched, False)

    def _border(self, length: int) -> int:
        """Longest proper border of the first ``length`` characters.

        The table grows only as deep as a text has matched: a stop string of a megabyte costs nothing until then.
        """
        want, borders = self.text, self._borders
        while len(borders) <= length:
            border, char = borders[-1], want[len(borders) - 1]
            while border and want[border] != char:
                border = borders[border]
            borders.append(border + (want[border] == char))
        return borders[length]


class Patterns:
    """The distinct strings of a request, looked for together; all its choices share them.

    What a character leads to is kept: else a text that almost matches costs a search for each string, character and choice.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self.all = tuple(Pattern(text) for text in dict.fromkeys(strings))
        self.start: Place = (0,) * len(self.all)
        self._firsts = frozenset(pattern.text[0] for pattern in self.all)
        self._steps: dict[tuple[Place, str], tuple[Place, str]] = {}

    def __len__(self) -> int:
        return len(self.all)

    def read(self, text: str, place: Place, *, armed: bool) -> tuple[Place, str, int]:
        """Continue all searches.

        Args:
            place: where they stand.
            armed: end where a string completes.

        Returns:
            Where they stand after it, the winning stop string, and its end in ``text``; ``""`` and 0 if there is none.
        """
        if place == self.start and self._firsts.isdisjoint(text):
            return place, "", 0
        steps = self._steps
        for end, char in enumerate(text, 1):
            place, stop = steps.get((place, char)) or self._step(place, char)
            if stop and armed:
                return place, stop, end
        return place, "", 0

    def _step(self, place: Place, char: str) -> tuple[Place, str]:
        """Where one character leads, and the longest string that completes with it."""
        after = [pattern.step(char, matched) for pattern, matched in zip(self.all, place, strict=True)]
        complete = [pattern.text for pattern, (_, done) in zip(self.all, after, strict=True) if done]
        if len(self._steps) * len(self.all) >= MOST_KEPT:
            self._steps.clear()
        step = self._steps[place, char] = tuple(matched for matched, _ in after), max(complete, key=len, default="")
        return step


def compile_stops(strings: Iterable[str]) -> Patterns:
    """Stop strings, to be shared by the choices of a request."""
    return Patterns(strings)


class StopMatcher:
    """Finds the winning stop string and holds back exactly what may still become part of one.

    Held back is the longest end of the text that is a proper prefix of some stop string, whether the stop is kept or cut: a stop string
    therefore arrives whole in one piece or not at all.

    Args:
        patterns: from ``compile_stops``; may be empty.
        include: release the stop string too.
    """

    __slots__ = ("_include", "_patterns", "_place")

    def __init__(self, patterns: Patterns, include: bool) -> None:
        self._patterns = patterns
        self._include = include
        self._place = patterns.start

    def feed(self, text: str, armed: bool = True) -> tuple[str, str | None]:
        """Text that is final now, and the stop string if one completed; nothing may be fed after that.

        Args:
            armed: ``False``: a stop string that completes in this text is ordinary text. One that only begins in it still counts.
        """
        if not self._place:  # there are no stop strings
            return text, None
        start, held = self._held()
        self._place, stop, end = self._patterns.read(text, self._place, armed=armed)
        if not stop:
            final = held + len(text) - max(self._place)
        elif self._include:
            final = held + end
        else:
            final = held + end - len(stop)
        return start[: min(final, held)] + text[: max(final - held, 0)], stop or None

    def flush(self) -> str:
        """The held-back text: the text ended without a stop."""
        start, held = self._held()
        self._place = self._patterns.start
        return start[:held]

    def _held(self) -> tuple[str, int]:
        """The held-back text as the first characters of a string, and their number.

        No buffer is needed: it is the start of the stop string that has matched furthest.
        """
        held = max(self._place, default=0)
        return (self._patterns.all[self._place.index(held)].text, held) if held else ("", 0)
