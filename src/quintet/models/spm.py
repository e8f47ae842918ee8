"""SentencePiece-style tokenising: repeatedly join the neighbours whose union has the highest score, leftmost first."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from quintet.models.metadata import Metadata
from quintet.models.vocabulary import PREFIX, SPACE_MARK, Vocabulary
from quintet.models.words import WordCache


class SentencePiece:
    """Encodes plain text with a scored vocabulary; characters without a token become byte tokens.

    Raises:
        ModelError: scores that are not finite numbers, or no token for some byte.
    """

    def __init__(self, meta: Metadata, vocabulary: Vocabulary) -> None:
        self._ids = vocabulary.ids
        self._scores = _scores(meta, len(self._ids))
        self._bytes = _byte_ids(meta, self._ids)
        self._longest = max(map(len, self._ids))
        self._joined = _joined_pairs(self._ids)
        self._space_prefix = meta.flag(PREFIX + "add_space_prefix", True)
        self._encode = WordCache(self._word).encode

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Ids of ``text``. ``after_special``: it begins the prompt or follows a special token, so a space is put before it."""
        if self._space_prefix and after_special:
            text = f" {text}"
        return self._encode(self._words(text.replace(" ", SPACE_MARK)))

    def _words(self, text: str) -> list[str]:
        """Cut where no token has those two characters side by side: no join can ever cross, so the words are independent."""
        joined = self._joined
        cuts = [at + 1 for at in range(len(text) - 1) if text[at : at + 2] not in joined]
        return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def _word(self, word: str) -> list[int]:
        ids, scores, longest, size = self._ids, self._scores, self._longest, len(word)
        ends = list(range(1, size + 1))  # of the piece that starts here; 0 once it is part of the piece before
        before = list(range(-1, size - 1))
        joins = _Joins(longest)
        for i in range(size - 1):
            token = ids.get(word[i : i + 2])
            if token is not None:
                joins.push(scores[token], i, 2)
        while (join := joins.pop()) is not None:
            left, end = join
            right = ends[left]
            if not right or right >= end or ends[right] != end:
                continue  # one of the two has been joined to another meanwhile
            ends[left], ends[right] = end, 0
            if end < size:
                before[end] = left
            for a, b in ((before[left], left), (left, end)):
                if a >= 0 and b < size and ends[b] - a <= longest:
                    token = ids.get(word[a : ends[b]])
                    if token is not None:
                        joins.push(scores[token], a, ends[b] - a)
        return [token for start, end in enumerate(ends) if end for token in self._token(word[start:end])]

    def _token(self, piece: str) -> list[int]:
        token = self._ids.get(piece)
        return [token] if token is not None else [self._bytes[byte] for byte in piece.encode()]


class _Joins:
    """A queue of possible joins, best score first, then leftmost.

    One queue per score, each filled nearly in order, so that a million equal joins cost no more each than a few; a heap of
    them all would spend most of the time comparing.

    Args:
        longest: most characters of a token.
    """

    def __init__(self, longest: int) -> None:
        self._step = longest + 1
        self._order: list[float] = []
        self._queues: dict[float, tuple[deque[int], list[int]]] = {}

    def push(self, score: float, left: int, length: int) -> None:
        item = left * self._step + length
        found = self._queues.get(score)
        if found is None:
            self._queues[score] = (deque((item,)), [])
            heappush(self._order, -score)
        elif not found[0] or found[0][-1] <= item:
            found[0].append(item)
        else:
            heappush(found[1], item)

    def pop(self) -> tuple[int, int] | None:
        """(left, end) of the best join; ``None`` when there is none."""
        while self._order:
            in_order, late = self._queues[-self._order[0]]
            if late and (not in_order or late[0] < in_order[0]):
                item = heappop(late)
            elif in_order:
                item = in_order.popleft()
            else:
                del self._queues[-heappop(self._order)]
                continue
            left, length = divmod(item, self._step)
            return left, left + length
        return None


def _scores(meta: Metadata, size: int) -> list[float]:
    numbers = meta.numbers(PREFIX + "scores", size)
    if numbers is None:
        return [0.0] * size
    scores = array("f", numbers).tolist()  # in single precision, as llama.cpp compares them
    if not all(map(math.isfinite, scores)):
        raise meta.error(PREFIX + "scores", "must hold finite numbers")
    return scores


def _byte_ids(meta: Metadata, ids: dict[str, int]) -> list[int]:
    found = []
    for byte in range(256):
        token = ids.get(f"<0x{byte:02X}>", ids.get(chr(byte)) if byte < 128 else None)
        if token is None:
            raise meta.error(PREFIX + "tokens", f"must have a token for every byte, but <0x{byte:02X}> is missing")
        found.append(token)
    return found


def _joined_pairs(ids: Iterable[str]) -> frozenset[str]:
    """Every two characters that stand side by side in some token."""
    return frozenset(text[at : at + 2] for text in ids for at in range(len(text) - 1))
