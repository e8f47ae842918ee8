"""What lists of log-probabilities call tokens that have no text of their own. Plain code over values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


def _nameless(_: int) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Labels:
    """Of one vocabulary.

    Args:
        pieces: bytes of each token id, empty for control tokens.
        spelling: how the vocabulary writes a token; empty = it does not.
        as_ids: every token is called by its id, as vLLM's ``return_tokens_as_token_ids`` has it.
    """

    pieces: Sequence[bytes]
    spelling: Callable[[int], str] = _nameless
    as_ids: bool = False

    def alone(self, token: int) -> str:
        """What a token by itself is called: no two control tokens have the same name."""
        piece = self.pieces[token]
        return piece.decode("utf-8", "replace") if piece and not self.as_ids else self._name(token)

    def of(self, token: int, piece: bytes) -> str:
        """What a token is called that gave a text these bytes: none, if it ended the text. Empty = as its text there."""
        return "" if piece and not self.as_ids else self.alone(token)

    def written(self, token: int) -> bytes:
        """A token as it is shown where a prompt of ids is echoed: control tokens by the text that stands for them in a prompt."""
        return self.pieces[token] or self.spelling(token).encode()

    def names(self, tokens: Iterable[int]) -> list[str]:
        """What each is written as in a prompt where it gives no text; empty = it gives one."""
        return ["" if self.pieces[token] else self.spelling(token) for token in tokens]

    def _name(self, token: int) -> str:
        # vLLM, return_tokens_as_token_ids: "tokens are represented as strings of the form 'token_id:{token_id}'".
        return ("" if self.as_ids else self.spelling(token)) or f"token_id:{token}"
