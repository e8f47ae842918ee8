"""What a guide makes likely to come next: text without a choice, and with the choice of white space made as before."""

from __future__ import annotations

import numpy as np

from quintet.backends.native.guide import Follower, Guides
from quintet.backends.native.thinker import Thinker

BLANKS = b" \t\n\r"

JOINTS = b",:{}[]\""
"""White space is looked past only after these, where JSON has it; elsewhere the mask that this takes would be computed for nothing."""

MOST_BYTES = 128


class Foresight:
    """Guesses for one vocabulary. A guess may be wrong: masks do not depend on it, nor does what is drawn."""

    def __init__(self, guides: Guides) -> None:
        self._guides = guides
        self._words = -(-len(guides.pieces) // 32)
        self._of_byte = {piece[0]: token for token, piece in reversed([*enumerate(guides.pieces)]) if len(piece) == 1}
        self._bytes = np.array([*self._of_byte], np.uint8)
        self._ids = np.array([*self._of_byte.values()], np.intp)

    def guess(self, follower: Follower | Thinker, output: list[int]) -> list[int]:
        """Tokens that are likely after ``output``, which the follower has consumed; it is left as it is."""
        tail = b"".join(map(self._guides.pieces.__getitem__, output[-MOST_BYTES:]))
        found = self._text(follower.copy(), tail[-2 * MOST_BYTES :])
        return self._guides.cut(found) if found else []

    def _text(self, ahead: Follower | Thinker, text: bytes) -> bytes:
        begin = len(text)
        while len(text) < begin + MOST_BYTES:
            more = ahead.forced() or self._past_blanks(ahead, text)
            if not more or not all(byte in self._of_byte and ahead.consume(self._of_byte[byte]) for byte in more):
                break
            text += more
        return text[begin:].rstrip(BLANKS)  # a token of the text that follows may begin with them

    def _past_blanks(self, ahead: Follower | Thinker, text: bytes) -> bytes:
        """The only byte that may come next but for white space, after white space as the output has it in such places."""
        if text[-1:] not in JOINTS:
            return b""
        mask = np.zeros(self._words, np.uint32)
        if not ahead.fill(mask):
            return b""
        bits = mask[self._ids // 32] >> (self._ids % 32).astype(np.uint32) & 1
        allowed = bytes(self._bytes[bits == 1].tolist())
        inked = allowed.translate(None, BLANKS)
        if len(inked) != 1:
            return b""
        return (_blanks_after(text) if len(allowed) > 1 else b"") + inked


def _blanks_after(text: bytes) -> bytes:
    """What white space stood after the text's last byte when that came before; at first a space after a comma or a colon."""
    last = text[-1:]
    at = text.rfind(last, 0, -1) if last else -1
    if at < 0:
        return b" " if last in (b",", b":") else b""
    rest = text[at + 1 :]
    return rest[: len(rest) - len(rest.lstrip(BLANKS))]
