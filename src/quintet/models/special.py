"""Finding special-token texts in a prompt, before any other tokenising."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

Trie = dict[str, "Trie"]
END = ""
"""Key in a trie: a text ends here."""

MAX_LENGTH = 256
"""Longest special text, in characters: the finder nests as deep as the longest text."""


class Specials:
    """Cuts a prompt at special-token texts the way llama.cpp does: longest text first, each taken left to right wherever
    no longer one was taken before.

    Args:
        texts: (text, id), not empty, each at most ``MAX_LENGTH`` characters.
        strip_after: ids after which white space is dropped.
    """

    def __init__(self, texts: Sequence[tuple[str, int]], strip_after: frozenset[int] = frozenset()) -> None:
        ranked = sorted(texts, key=lambda item: -len(item[0].encode()))
        self._ids = {text: (rank, token) for rank, (text, token) in enumerate(ranked)}
        self._shorter = {text: [text[:n] for n in range(1, len(text)) if text[:n] in self._ids] for text in self._ids}
        self._strip = strip_after
        pattern = _pattern(_trie(list(self._ids)))
        self._find = re.compile(f"(?=({pattern}))") if texts else None

    def cut(self, text: str) -> Iterator[str | int]:
        """The prompt as plain texts (never empty) and token ids, in order. Time is linear in the text and the matches."""
        taken = self._take(text)
        at = 0
        for start, end, token in taken:
            if start > at:
                yield text[at:start]
            yield token
            at = end
        if at < len(text):
            yield text[at:]

    def _take(self, text: str) -> list[tuple[int, int, int]]:
        """(start, end, id) of the texts taken, in order; ``end`` is past the white space dropped."""
        places: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
        for match in self._find.finditer(text) if self._find else ():
            for found in (match[1], *self._shorter[match[1]]):
                places[self._ids[found][0]].append((match.start(), found))
        used = bytearray(len(text) if places else 0)
        taken = []
        for rank in sorted(places):
            for start, found in places[rank]:
                end = start + len(found)
                if used.find(1, start, end) < 0:
                    token = self._ids[found][1]
                    while token in self._strip and end < len(text) and text[end] in " \t\n\v\f\r" and not used[end]:
                        end += 1
                    used[start:end] = b"\1" * (end - start)
                    taken.append((start, end, token))
        return sorted(taken)


def _trie(texts: list[str]) -> Trie:
    root: Trie = {}
    for text in texts:
        node = root
        for char in text:
            node = node.setdefault(char, {})
        node[END] = {}
    return root


def _pattern(node: Trie) -> str:
    """A regular expression for the longest text from this node on; a trie, so that a common beginning is looked at once."""
    arms = [re.escape(char) + _pattern(rest) for char, rest in node.items() if char != END]
    if not arms:
        return ""
    body = arms[0] if len(arms) == 1 else f"(?:{'|'.join(arms)})"
    return f"(?:{body})?" if END in node else body
