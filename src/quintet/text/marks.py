"""Which text of a prompt with images each of its tokens has. Plain code over values.

A client writes a mark, and the model gets many tokens for it: the first of them has the mark's text, and the others none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from quintet.text.detokenize import align, token_texts
from quintet.text.labels import Labels


@dataclass(frozen=True, slots=True)
class Marks:
    """
    Args:
        runs: (first, count) of the tokens that stand for each mark, without those of ``around``.
        text: of a mark, as it is in the prompt; empty = the prompt is token ids, and a mark is one of them, of which the run is made.
        around: what was put between a mark's tokens and the prompt's own text, on either side.
    """

    runs: Sequence[tuple[int, int]]
    text: str = ""
    around: str = ""


def marked_spans(prompt: str, tokens: Sequence[int], labels: Labels, piece: Callable[[int], bytes], marks: Marks) -> Iterator[str]:
    """The text of each token; together they are the prompt.

    Args:
        piece: the bytes of a token id.
    """
    return _of_text(prompt, tokens, labels, piece, marks) if marks.text else _of_ids(prompt, tokens, labels, piece, marks.runs)


def _of_text(prompt: str, tokens: Sequence[int], labels: Labels, piece: Callable[[int], bytes], marks: Marks) -> Iterator[str]:
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


def _of_ids(
    prompt: str, tokens: Sequence[int], labels: Labels, piece: Callable[[int], bytes], runs: Sequence[tuple[int, int]]
) -> Iterator[str]:
    """A run's text is what the prompt has for the client's one token, whatever that is: the text between those around it."""
    counts = dict(runs)
    own: list[int] = []  # the client's: one for each run
    at = 0
    while at < len(tokens):
        own.append(at)
        at += counts.get(at, 1)
    texts = token_texts(b"" if at in counts else piece(tokens[at]) for at in own)
    names = ["" if at in counts else name for at, name in zip(own, labels.names(tokens[at] for at in own), strict=True)]
    for at, span in zip(own, align(texts, prompt, names), strict=True):
        yield span
        yield from [""] * (counts.get(at, 1) - 1)
