"""What a guide makes likely to come next: text without a choice, and with the choice of white space made as before."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from quintet.backends.native.draft.thinking_budget import ThinkingBudget
from quintet.guides.matcher import Compiler, Matcher

BLANKS = b" \t\n\r"

JOINTS = b',:{}[]"'
"""White space is looked past only after these, where JSON has it; elsewhere the mask that this takes would be computed for nothing."""

MOST_BYTES = 128

_WORD = re.compile(rb" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
"""Where most tokenizers cut before they merge, as GPT-2's does: the last blank goes with what follows it."""


class JumpForward:
    """Guesses for one vocabulary. A guess may be wrong: masks do not depend on it, nor does what is drawn."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._words = -(-len(compiler.pieces) // 32)
        self._of_byte = {piece[0]: token for token, piece in reversed([*enumerate(compiler.pieces)]) if len(piece) == 1}
        self._bytes = np.array([*self._of_byte], np.uint8)
        self._ids = np.array([*self._of_byte.values()], np.intp)

    def begins(self, matcher: Matcher | ThinkingBudget, output: Sequence[int]) -> bool:
        """Whether there may be anything to guess after ``output``, which the matcher has consumed. Quick; inside strings there is not."""
        return bool(matcher.forced()) or self._tail(output).rstrip(BLANKS)[-1:] in JOINTS

    def guess(self, ahead: Matcher | ThinkingBudget, output: Sequence[int], goes_on: Callable[[], bool]) -> list[int]:
        """Tokens that are likely after ``output``.

        Args:
            ahead: has consumed the output, and goes further.
            goes_on: asked before each piece of text; False: it has taken long enough.
        """
        found = self._text(ahead, self._tail(output), goes_on)
        return [token for word in _WORD.findall(found) for token in self._compiler.cut(word)]

    def _tail(self, output: Sequence[int]) -> bytes:
        return b"".join(map(self._compiler.pieces.__getitem__, output[-MOST_BYTES:]))[-2 * MOST_BYTES :]

    def _text(self, ahead: Matcher | ThinkingBudget, text: bytes, goes_on: Callable[[], bool]) -> bytes:
        begin = len(text)
        while len(text) < begin + MOST_BYTES and goes_on():
            more = ahead.forced() or self._past_blanks(ahead, text)
            if not more or not all(byte in self._of_byte and ahead.consume(self._of_byte[byte]) for byte in more):
                break
            text += more
        return text[begin:].rstrip(BLANKS)  # a token of the text that follows may begin with them

    def _past_blanks(self, ahead: Matcher | ThinkingBudget, text: bytes) -> bytes:
        """The only byte that may come next but for white space, after white space as the output has it in such places."""
        joint = text.rstrip(BLANKS)
        if joint[-1:] not in JOINTS:
            return b""
        mask = np.zeros(self._words, np.uint32)
        if not ahead.fill(mask):
            return b""
        bits = mask[self._ids // 32] >> (self._ids % 32).astype(np.uint32) & 1
        allowed = bytes(self._bytes[bits == 1].tolist())
        inked = allowed.translate(None, BLANKS)
        if len(inked) != 1:
            return b""
        begun, whole = text[len(joint) :], _blanks(joint, inked)
        if len(allowed) == 1:
            return inked
        return whole[len(begun) :] + inked if whole.startswith(begun) else b""


def _blanks(text: bytes, following: bytes) -> bytes:
    """What white space stood between the text's last byte and this one when they met before; at first a space after a comma or a colon,
    or a line for each item if the first has one."""
    last = text[-1:]
    before = re.findall(re.escape(last) + rb"([ \t\n\r]*)" + re.escape(following), text)
    if before or last not in (b",", b":"):
        return bytes(before[-1]) if before else b""
    opened = re.findall(rb"[{\[]([ \t\n\r]*)", text)
    return bytes(opened[-1]) if last == b"," and opened and b"\n" in opened[-1] else b" "
