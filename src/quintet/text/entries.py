"""Log-probability entries of tokens, and an echoed prompt's, which all samples of it share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from quintet.events import TokenEvent, TokenText
from quintet.text.detokenize import align, token_texts
from quintet.text.labels import Labels
from quintet.text.marks import Marks, marked_spans


class Entries:
    """Makes the entries of a text, one after the other.

    Args:
        offset: characters before the first.
        labels: what the alternatives are called, and tokens without text.
    """

    def __init__(self, offset: int, labels: Labels) -> None:
        self._offset = offset
        self._labels = labels

    def add(self, event: TokenEvent, text: str, *, whole: bool = True) -> TokenText:
        """The entry of the next token, whose text as returned is ``text``; ``whole``: see ``TokenText``."""
        # A control token that is written out in a prompt is called by what stands there.
        name = self._labels.of(event.token, event.piece) if self._labels.as_ids or not text else ""
        top = self._top(event, name or text)
        raws = tuple(event.piece if token == event.token else self._labels.written(token) for token, _, _ in top)
        entry = TokenText(event.token, text, event.piece, event.logprob, top, self._offset, name, whole, raws)
        self._offset += len(text)
        return entry

    def _top(self, event: TokenEvent, label: str) -> tuple[tuple[int, str, float], ...]:
        """The alternatives, the sampled token among them under the label and the log-probability of its own entry."""
        if event.logprob is None:
            return ()
        own = (event.token, label, event.logprob)
        if not event.top:
            return (own,)
        top = [own if token == event.token else (token, self._labels.alone(token), logprob) for token, logprob in event.top]
        return tuple(top) if own in top else (*top, own)


class Echo:
    """What is shown of a prompt before its completions: made once, however many samples there are.

    Args:
        prompt: its text.
        tokens: its own ids; needed for the entries, and if only the last are shown.
        labels: what tokens are called.
        skip: of the first tokens nothing is shown.
        written: the text was made of the tokens, with control tokens written out.
        marks: where its images are; ``None`` = there are none.
    """

    def __init__(
        self, prompt: str, tokens: Sequence[int], labels: Labels, skip: int = 0, written: bool = False, marks: Marks | None = None
    ) -> None:
        piece = labels.written if written else labels.pieces.__getitem__
        self._spans = _spans(prompt, tokens, labels, piece) if marks is None else marked_spans(prompt, tokens, labels, piece, marks)
        self._start = sum(map(len, islice(self._spans, skip)))
        self.text = prompt[self._start :]
        self._entries = Entries(self._start, labels)
        self._made: list[TokenText] = []
        self._tokens: tuple[TokenText, ...] | None = None

    def add(self, event: TokenEvent) -> None:
        """The next of the tokens that are shown."""
        self._made.append(self._entries.add(event, next(self._spans)))

    @property
    def tokens(self) -> tuple[TokenText, ...]:
        """All entries, the same object for every sample; to be asked for when no more come.

        Their texts join to ``text``, also where the request ended before all of them came.
        """
        if self._tokens is None:
            if self._made:
                last = self._made[-1]
                self._made[-1] = last.with_text(self.text[last.offset - self._start :])
            self._tokens, self._made = tuple(self._made), []
        return self._tokens


class Scores:
    """The entries of a prompt's tokens by themselves, each called as it is called alone: made once for all samples."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._made: list[TokenText] = []
        self._tokens: tuple[TokenText, ...] | None = None

    def add(self, event: TokenEvent) -> None:
        """The next token."""
        label = self._labels.alone(event.token)
        top = () if event.logprob is None else tuple((token, self._labels.alone(token), logprob) for token, logprob in event.top)
        self._made.append(TokenText(event.token, label, event.piece, event.logprob, top, 0))

    @property
    def tokens(self) -> tuple[TokenText, ...]:
        """All entries, the same object for every sample; to be asked for when no more come."""
        if self._tokens is None:
            self._tokens, self._made = tuple(self._made), []
        return self._tokens


def _spans(prompt: str, tokens: Sequence[int], labels: Labels, piece: Callable[[int], bytes]) -> Iterator[str]:
    """The text of each token; nothing is done before the first is asked for."""
    yield from align(token_texts(map(piece, tokens)), prompt, labels.names(tokens))
