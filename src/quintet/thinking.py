"""Think blocks: where a model thinks before it answers, between two tags in its text. Plain code over bytes.

The engine holds a budget with it and the text side counts by it, so the two cannot disagree.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thinking:
    """How one sequence may think.

    Args:
        start, end: the tags' bytes; not empty, and not equal.
        close: for each byte of ``end``, the token with which the rest of the tag from that byte on is written.
        inside: the prompt ends in an open block.
        once: no other block than that one counts: what follows it conforms to a guide, in which a tag is only text.
        budget: most tokens in blocks; ``None`` = as many as the model likes.
    """

    start: bytes
    end: bytes
    close: tuple[int, ...]
    inside: bool = False
    once: bool = False
    budget: int | None = None


class ThinkCounter:
    """Where one sequence stands, told its generated tokens one by one.

    A tag is found wherever its bytes stand in the generated text, however they were cut into tokens. A token counts as thinking if its
    first byte lies in a block; those that write the end tag, or so far may be writing it, do not.
    """

    def __init__(self, thinking: Thinking) -> None:
        self.inside = thinking.inside
        self.matched = 0
        """Bytes of the tag that is looked for with which the text so far ends."""
        self.spent = 0
        """Tokens in blocks, with those of an end tag that is not complete."""
        self._start, self._end, self._once = thinking.start, thinking.end, thinking.once
        self._at = 0  # bytes so far
        self._begun: deque[int] = deque(maxlen=len(thinking.end))  # where the last tokens of this block begin

    @property
    def tokens(self) -> int:
        """Tokens of thinking."""
        border = self._at - self.matched
        return self.spent - (sum(begin >= border for begin in self._begun) if self.inside and self.matched else 0)

    def feed(self, piece: bytes) -> None:
        """The bytes of the next token."""
        if self._once and not self.inside:
            return
        if self.inside:
            self.spent += 1
            self._begun.append(self._at)
        tag = self._end if self.inside else self._start
        if not self.matched and tag[0] not in piece:
            self._at += len(piece)
            return
        for byte in piece:
            self._step(byte)

    def _step(self, byte: int) -> None:
        tag = self._end if self.inside else self._start
        ending = tag[: self.matched] + bytes([byte])
        while not tag.startswith(ending):
            ending = ending[1:]
        self._at += 1
        self.matched = len(ending)
        if ending == tag:
            self._turn()

    def _turn(self) -> None:
        """A tag is complete."""
        self.spent = self.tokens
        self._begun.clear()
        self.inside, self.matched = not self.inside, 0


def ends_inside(text: bytes, start: bytes, end: bytes) -> bool:
    """The last tag in a prompt opens a block."""
    return text.rfind(start) > text.rfind(end)
