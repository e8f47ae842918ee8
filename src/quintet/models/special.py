"""Finding special-token texts in a prompt, before any other tokenising."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush, merge

Trie = dict[str, "Trie"]
END = ""
"""Key in a trie: a text ends here."""

MAX_LENGTH = 256
"""Longest special text, in characters: the finder nests as deep as the longest text."""

MAX_CHARACTERS = 1 << 20
"""In all special texts together; the finder takes some 200 bytes for each. A vocabulary of today has a tenth of it."""


class Specials:
    """Cuts a prompt at special-token texts the way llama.cpp does: longest text first, each taken left to right wherever
    no longer one was taken before.

    Args:
        texts: (text, id), not empty, each at most ``MAX_LENGTH`` characters.
        strip_after: ids after which white space is dropped.
    """

    def __init__(self, texts: Sequence[tuple[str, int]], strip_after: frozenset[int] = frozenset()) -> None:
        self._ranked = sorted(texts, key=lambda item: -len(item[0].encode()))
        self._ranks = {text: rank for rank, (text, _) in enumerate(self._ranked)}
        self._shorter = [self._prefix(text) for text, _ in self._ranked]
        self._strip = strip_after
        pattern = _pattern(_trie(list(self._ranks)))
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

    def _take(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, id) of the texts taken, in order; ``end`` is past the white space dropped."""
        # Rank -> where its text may begin. Each place is in one at a time, that of the longest text there which has not been tried: runs of
        # spaces are texts that nest, and a prompt full of them has as many at each of its characters.
        places: defaultdict[int, array[int]] = defaultdict(lambda: array("I"))
        for match in self._find.finditer(text) if self._find else ():
            places[self._ranks[match[1]]].append(match.start())
        used = bytearray(len(text) if places else 0)
        taken: list[list[tuple[int, int, int]]] = []  # of each rank, in order
        ranks, mixed = sorted(places), set[int]()  # the latter have places from longer texts too, which are not in order
        while ranks:
            rank = heappop(ranks)
            (found, token), shorter = self._ranked[rank], self._shorter[rank]
            starts, own = places.pop(rank), list[tuple[int, int, int]]()
            taken.append(own)
            for start in sorted(starts) if rank in mixed else starts:  # millions that are sorted hold the interpreter up for a second
                end = start + len(found)
                if used.find(1, start, end) < 0:
                    while token in self._strip and end < len(text) and text[end] in " \t\n\v\f\r" and not used[end]:
                        end += 1
                    used[start:end] = b"\1" * (end - start)
                    own.append((start, end, token))
                elif shorter is not None and not used[start]:
                    if shorter not in places:
                        heappush(ranks, shorter)
                    places[shorter].append(start)
                    mixed.add(shorter)
        return merge(*taken)

    def _prefix(self, text: str) -> int | None:
        """The rank of the longest text that this one begins with."""
        return next((self._ranks[text[:size]] for size in range(len(text) - 1, 0, -1) if text[:size] in self._ranks), None)


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
