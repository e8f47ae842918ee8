"""Ends a choice by its lines, which is how an editor's user wants to be served: nothing beyond the block, and not too late.

As llama-server does it (tools/server/README.md, ``n_indent`` and ``t_max_predict_ms``; process_token in server-context.cpp), but for one
thing: it looks at most at one line per token, and here no line goes unseen.
"""

from __future__ import annotations

from collections.abc import Sequence

from quintet.events import ChoiceDelta, ChoiceDone, TokenText

_BLANKS = " \t"


class LineLimit:
    """Over the deltas of one choice.

    Args:
        indent: a line after the first ends the text where anything, be it a line break, follows fewer blanks than these; 0 = off.
        seconds: the text ends with the first piece that has a line break, so long after the first token; 0 = off.
    """

    def __init__(self, indent: int, seconds: float) -> None:
        self._indent = indent
        self._seconds = seconds
        self._blanks: int | None = None  # of the line so far; None = it has more than blanks, or is the first

    def feed(self, events: Sequence[ChoiceDelta | ChoiceDone], elapsed: float) -> tuple[list[ChoiceDelta | ChoiceDone], bool]:
        """What remains of them, and whether the limit ended the choice; nothing may be fed after that.

        Args:
            elapsed: seconds since the first token.
        """
        out: list[ChoiceDelta | ChoiceDone] = []
        for event in events:
            if isinstance(event, ChoiceDone):
                return [*out, event], False
            end = self._end(event.text)
            if end != 0:
                out.append(event if end is None else _cut(event, end))
            if end is not None or (0 < self._seconds < elapsed and "\n" in event.text):
                return out, True
        return out, False

    def _end(self, text: str) -> int | None:
        """Where in the piece a line turns out not to be indented enough; ``None`` = nowhere."""
        if not self._indent:
            return None
        for at, char in enumerate(text):
            if self._blanks is not None and char in _BLANKS:
                self._blanks += 1
            elif self._blanks is not None and self._blanks < self._indent:
                return at
            else:
                self._blanks = 0 if char == "\n" else None
        return None


def _cut(delta: ChoiceDelta, length: int) -> ChoiceDelta:
    """Its first characters, and the tokens that they come of; a token that goes on past them keeps the part that is returned."""
    tokens: list[TokenText] = []
    left = length
    for token in delta.tokens:
        if left <= 0:
            break
        tokens.append(token.with_text(token.text[:left]))
        left -= len(token.text)
    return ChoiceDelta(delta.index, delta.text[:length], tuple(tokens), delta.prompt, delta.scores)
