"""What a moderation model's answer says, token by token. Plain code over values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from quintet.events import TokenEvent
from quintet.moderation.format import Format, Question


class Reader:
    """Reads one answer.

    Args:
        after: see ``Layout``.
        pieces: the bytes of each token id of the model.
    """

    def __init__(self, form: Format, after: str, pieces: Sequence[bytes]) -> None:
        self._form, self._after, self._pieces = form, after, pieces
        self._text = b""
        self.unsafe: bool | None = None
        """``None`` = the answer has not said it, or never will once it is ``done``."""
        self.done = False
        """All is known that will be."""

    def feed(self, event: TokenEvent) -> None:
        """Take the answer's next token, with the likeliest ones beside it."""
        if self.done:
            return
        if self.unsafe is None and event.piece.strip() and self._is_due():
            self.unsafe = self._verdict(event)
            self._text = b""
            self.done = self.unsafe is None
        self._text += event.piece
        named = self.unsafe and self._form.categories
        self.done = self.done or event.finish is not None or (self.unsafe is not None and not named)

    def categories(self, question: Question) -> tuple[tuple[str, str], ...]:
        """The categories of an unsafe text, those that are named, in the format's order."""
        if question.category:
            return ((question.category, ""),)
        named = set(re.findall(r"\w+", self._text.decode("utf-8", "replace")))
        return tuple((code, name) for code, name in self._form.categories if code in named)

    def _is_due(self) -> bool:
        return self._text.decode("utf-8", "replace").rstrip().endswith(self._after)

    def _verdict(self, event: TokenEvent) -> bool | None:
        """By the probabilities of the tokens with which either answer may begin, if the likeliest of all is one of them."""
        form = self._form
        likely = {event.token: event.logprob, **dict(event.top)}
        if not any(self._begins(event.token, answer) for answer in (form.safe, form.unsafe)):
            return None
        safe, unsafe = (
            sum(math.exp(logprob) for token, logprob in likely.items() if logprob is not None and self._begins(token, answer))
            for answer in (form.safe, form.unsafe)
        )
        return unsafe >= form.threshold * (safe + unsafe)

    def _begins(self, token: int, answer: str) -> bool:
        text = self._pieces[token].decode("utf-8", "replace").strip().lower()
        return bool(text) and answer.startswith(text)
