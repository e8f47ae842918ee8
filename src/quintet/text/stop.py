"""Literal stop strings over text that arrives in pieces of any size.

Which match wins: the stop string that completes at the earliest character; among those that complete at the same character the longest,
that is the one that starts first. Matching is Knuth-Morris-Pratt per string: linear in the text, whatever the strings are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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

    def advance(self, text: str, matched: int) -> tuple[int, int]:
        """Continue a search.

        Args:
            text: what comes next.
            matched: characters of the stop string that the text before ended with, less than all.

        Returns:
            The same count after ``text``, and 0; or, if the string completes, its whole length and the number of characters
            of ``text`` up to there.
        """
        want, at = self.text, 0
        while at < len(text):
            if not matched and (at := text.find(want[0], at)) < 0:
                return 0, 0
            while matched and want[matched] != text[at]:
                matched = self._border(matched)
            matched += want[matched] == text[at]
            at += 1
            if matched == len(want):
                return matched, at
        return matched, 0

    def skip(self, text: str, matched: int) -> int:
        """Continue a search over ``text``, past every match; characters matched after it, less than all."""
        while True:
            matched, end = self.advance(text, matched)
            if not end:
                return matched
            matched, text = self._border(matched), text[end:]

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


def compile_stops(strings: Iterable[str]) -> tuple[Pattern, ...]:
    """Patterns of the distinct strings, to be shared by the choices of a request."""
    return tuple(Pattern(text) for text in dict.fromkeys(strings))


class StopMatcher:
    """Finds the winning stop string and holds back exactly what may still become part of one.

    Held back is the longest end of the text that is a proper prefix of some stop string, whether the stop is kept or cut: a stop string
    therefore arrives whole in one piece or not at all.

    Args:
        patterns: from ``compile_stops``; may be empty.
        include: release the stop string too.
    """

    __slots__ = ("_include", "_matched", "_patterns")

    def __init__(self, patterns: Sequence[Pattern], include: bool) -> None:
        self._patterns = patterns
        self._include = include
        self._matched = [0] * len(patterns)

    def feed(self, text: str, armed: bool = True) -> tuple[str, str | None]:
        """Text that is final now, and the stop string if one completed; nothing may be fed after that.

        Args:
            armed: ``False``: a stop string that completes in this text is ordinary text. One that only begins in it still counts.
        """
        if not self._patterns:
            return text, None
        start, held = self._held()
        if armed:
            stop, end = self._advance(text)
        else:
            self._skip(text)
            stop, end = "", 0
        if not stop:
            final = held + len(text) - max(self._matched)
        elif self._include:
            final = held + end
        else:
            final = held + end - len(stop)
        return start[: min(final, held)] + text[: max(final - held, 0)], stop or None

    def flush(self) -> str:
        """The held-back text: the text ended without a stop."""
        start, held = self._held()
        self._matched = [0] * len(self._patterns)
        return start[:held]

    def _skip(self, text: str) -> None:
        """Continue every search over whatever completes."""
        for index, pattern in enumerate(self._patterns):
            self._matched[index] = pattern.skip(text, self._matched[index])

    def _held(self) -> tuple[str, int]:
        """The held-back text as the first characters of a string, and their number.

        No buffer is needed: it is the start of the stop string that has matched furthest.
        """
        held = max(self._matched, default=0)
        return (self._patterns[self._matched.index(held)].text, held) if held else ("", 0)

    def _advance(self, text: str) -> tuple[str, int]:
        """Continue every search; the winning stop string and its end in ``text``, or ``""`` and 0."""
        best, best_end = "", 0
        for index, pattern in enumerate(self._patterns):
            self._matched[index], end = pattern.advance(text, self._matched[index])
            if end and (not best or (end, -len(pattern.text)) < (best_end, -len(best))):
                best, best_end = pattern.text, end
        return best, best_end
