"""Which text of a prompt with images each of its tokens has. Plain code over values.

A client writes a mark, and the model gets many tokens for it: the first of them has the mark's text, and the others none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from quintet.text.detokenize import align, token_texts
from quintet.text.labels import Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMarks:
    """Of a prompt that is text.

    Args:
        runs: (first, count) of the tokens that stand for each mark, without those of ``around``.
        text: of a mark, as it is in the prompt.
        around: what was put between a mark's tokens and the prompt's own text, on either side.
    """

    runs: Sequence[tuple[int, int]]
    text: str
    around: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdMarks:
    """Of a prompt that is token ids.

    Args:
        runs: (first, count) of the tokens that stand for each mark; before each were put as many others as behind it.
        ids: the prompt as the client sent it.
        mark: the one of them that is a mark.
    """

    runs: Sequence[tuple[int, int]]
    ids: Sequence[int]
    mark: int


Marks = TextMarks | IdMarks


def marked_spans(prompt: str, tokens: Sequence[int], labels: Labels, piece: Callable[[int], bytes], marks: Marks) -> Iterator[str]:
    """The text of each token; together they are the prompt.

    Args:
        piece: the bytes of a token id.
    """
    if isinstance(marks, IdMarks):
        return _of_ids(len(tokens), piece, marks)
    return _of_text(prompt, tokens, labels, piece, marks)


def _of_text(prompt: str, tokens: Sequence[int], labels: Labels, piece: Callable[[int], bytes], marks: TextMarks) -> Iterator[str]:
    first_part, *later_parts = prompt.split(marks.text)

    def own(part: str, between: Sequence[int], before: str, after: str) -> Iterator[str]:
        """The texts of the tokens of a part of the prompt, and of what was put around it, which has none."""
        texts = token_texts(map(piece, between))
        if texts:
            spans = align(texts, before + part + after, labels.names(between))
            yield from _within(spans, len(before), len(before) + len(part))

    ends = [*(first for first, _ in marks.runs), len(tokens)]  # of the tokens of each part
    yield from own(first_part, tokens[: ends[0]], "", marks.around if marks.runs else "")
    for (first, count), end, part in zip(marks.runs, ends[1:], later_parts, strict=True):
        yield marks.text
        yield from [""] * (count - 1)
        yield from own(part, tokens[first + count : end], marks.around, marks.around if end < len(tokens) else "")


def _within(spans: Iterator[str], start: int, end: int) -> Iterator[str]:
    """Of texts that follow each other, what is from ``start`` to ``end`` of them all."""
    at = 0
    for span in spans:
        yield span[max(start - at, 0) : max(end - at, 0)]
        at += len(span)


def _of_ids(length: int, piece: Callable[[int], bytes], marks: IdMarks) -> Iterator[str]:
    """Each of the client's tokens has its own text, and a mark's belongs to the first of the tokens that stand for it."""
    runs = iter(marks.runs)
    at = 0
    for token, text in zip(marks.ids, token_texts(map(piece, marks.ids)), strict=True):
        if token != marks.mark:
            yield text
            at += 1
            continue
        first, count = next(runs)
        around = first - at
        yield from [""] * around
        yield text
        yield from [""] * (count - 1 + around)
        at = first + count + around
    yield from [""] * (length - at)
