"""Bytes to text: incremental UTF-8, and which characters belong to which token.

The fragment rule: a token's text is what its bytes make final. A token that holds only part of a character has the text ``''``, and the
token that completes the character carries all of it. So the texts of a run of tokens always join to the text of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

# The first continuation byte is narrower than 80..BF after these leads (Unicode 15, table 3-7): overlong forms, surrogates
# and values past U+10FFFF can be refused at once, and must be, for we hold back only what may still become a character.
_SECOND = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}

_GAP = 128
"""Most characters that ``align`` skips to find a token's text: longer than any control token's name, short enough to stay linear."""

_ANCHOR = 8
"""Tokens that ``align`` looks for together: one short token alone is found too easily inside a control token's name."""


class Detokenizer:
    """Incremental UTF-8 with U+FFFD for what is invalid: any chunking gives ``bytes.decode('utf-8', 'replace')`` of the whole."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    @property
    def pending(self) -> bool:
        """Bytes of an unfinished character are held back."""
        return bool(self._tail)

    def feed(self, piece: bytes) -> str:
        """The text that ``piece`` makes final."""
        if not self._tail and piece.isascii():  # as most are
            return piece.decode("ascii")
        data = self._tail + piece
        cut = len(data) - _unfinished(data)
        self._tail = data[cut:]
        return data[:cut].decode("utf-8", "replace")

    def flush(self) -> str:
        """The text of the held-back bytes at the end: one U+FFFD or nothing."""
        tail, self._tail = self._tail, b""
        return tail.decode("utf-8", "replace")


def _unfinished(data: bytes) -> int:
    """Number of bytes at the end of ``data`` that may still become a character, 0 to 3."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            return back if _may_continue(data[-back:]) else 0
    return 0


def _may_continue(start: bytes) -> bool:
    """A lead byte and its continuation bytes so far are a proper prefix of some character's UTF-8."""
    lead = start[0]
    size = 2 if 0xC2 <= lead <= 0xDF else 3 if 0xE0 <= lead <= 0xEF else 4 if 0xF0 <= lead <= 0xF4 else 0
    if len(start) >= size:
        return False
    low, high = _SECOND.get(lead, (0x80, 0xBF))
    return len(start) == 1 or low <= start[1] <= high


def token_texts(pieces: Iterable[bytes]) -> list[str]:
    """The text of each token of a complete run, by the fragment rule.

    Bytes left unfinished at the end are one U+FFFD, which belongs to the last token that has bytes.
    """
    detokenizer = Detokenizer()
    texts: list[str] = []
    last = 0
    for index, piece in enumerate(pieces):
        texts.append(detokenizer.feed(piece))
        last = index if piece else last
    if detokenizer.pending:
        texts[last] += detokenizer.flush()
    return texts


def align(texts: Sequence[str], whole: str, names: Sequence[str]) -> Iterator[str]:
    """Spread ``whole`` over the (one or more) tokens it was tokenised to; the results always join to ``whole``.

    Args:
        names: of each token without a text, what stands for it where it is written out; empty = nothing does.

    The tokens' own ``texts`` need not join to it: a control token written out in a prompt has no text of its own, SentencePiece puts a
    space before the first word, a tokenizer may normalise. Each token takes its own text, or its name, where that comes next; text
    that no token claims goes to the token before it, and a token whose text does not come within ``_GAP`` characters takes what the next
    one leaves.
    """
    if "".join(texts) == whole:
        yield from texts
        return
    before: str | None = None
    at = 0
    for index, text in enumerate(texts):
        place = _locate(texts, index, whole, at) if text else _named(names[index], whole, at)
        start, end = place or (at, at)
        if before is not None:
            yield before + whole[at:start]
            at = start
        before = whole[at:end]
        at = end
    yield (before or "") + whole[at:]


def _named(name: str, whole: str, at: int) -> tuple[int, int] | None:
    return (at, at + len(name)) if name and whole.startswith(name, at) else None


def _locate(texts: Sequence[str], index: int, whole: str, at: int) -> tuple[int, int] | None:
    """Start and end of the token ``index`` in ``whole``, from ``at`` on; ``None`` if it does not come soon."""
    text = texts[index]
    if index and texts[index - 1]:
        if whole.startswith(text, at):
            return at, at + len(text)
    elif place := _locate_run(texts, index, whole, at):
        return place
    start = whole.find(text, at, at + _GAP + len(text))
    return None if start < 0 else (start, start + len(text))


def _locate_run(texts: Sequence[str], index: int, whole: str, at: int) -> tuple[int, int] | None:
    """The same where text begins: at the start, or after a token without text, whose name may come first."""
    run = texts[index : index + _ANCHOR]
    anchor = "".join(run[: run.index("")] if "" in run else run)
    spaces = (0, 1) if anchor.startswith(" ") and len(anchor) > 1 else (0,)  # 1: the space is SentencePiece's own
    found = [(whole.find(anchor[space:], at, at + _GAP + len(anchor)), space) for space in spaces]
    start, space = min((place for place in found if place[0] >= 0), default=(-1, 0))
    return None if start < 0 else (start, start + len(texts[index]) - space)
