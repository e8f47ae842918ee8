"""How far a body in chunks goes (RFC 9112, 7.1). Plain code over values: what is in it, and whether it is well formed, is the parser's."""

from __future__ import annotations

import re

END = b"\r\n\r\n"
"""What a head, and the trailers of a body in chunks, end with."""

OVERLAP = len(END) - 1

# Possessive: of digits without an end, nothing is given back and tried anew, which took seconds for 16 KiB, for everybody.
_SIZE = re.compile(rb"([0-9A-Fa-f]++)[^\r\n]*+\r\n")
_BEGUN = re.compile(rb"[0-9A-Fa-f]++[^\r\n]*+\r?")
_BREAK_BYTES = 2


class Chunks:
    """The chunks of one body, by their sizes: to look for its end in what it holds is dear where that is full of line breaks."""

    def __init__(self) -> None:
        self._left = 0  # bytes of the chunk that has begun, with the line break after it
        self._trailers = False

    def end(self, data: bytes, at: int, most: int) -> int:
        """How far the parser may be given ``data``, which it has up to ``at``: to ``most``, or less far where the body ends before that.

        ``at`` itself: more must come first, since the size of a chunk is not all there.
        """
        end, self._left = at + self._left, 0
        while not self._trailers and end < most:
            line = _SIZE.match(data, end, most)
            if line is None:  # one that is no size, or too long, is for others to refuse
                return end if end > at or (most == len(data) and _BEGUN.fullmatch(data, end)) else most
            size = int(line[1], 16)
            self._trailers = not size
            end = line.end() + (size + _BREAK_BYTES if size else 0)
        if not self._trailers:
            self._left = end - most
            return most
        found = data.find(END, max(0, end - OVERLAP), most)
        return found + len(END) if found >= 0 else most
