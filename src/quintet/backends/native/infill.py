"""Fill in the middle: a prompt and the text after it, in the form that the model was trained on. Plain code over values.

The form is prefix-suffix-middle (Bavarian et al. 2022, "PSM"), as llama.cpp builds it for every model: ``[BOS] <prefix> prompt <suffix>
suffix <middle>``. BOS only where the tokenizer puts one before a text; a prompt of token ids is taken as it is, between the markers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quintet.backends.native.core import Tokenizer
from quintet.request import Prompt


@dataclass(frozen=True, slots=True)
class Infill:
    """A model's fill-in-the-middle tokens.

    Args:
        before, after: how many tokens the tokenizer adds to a text at either end.
    """

    prefix: int
    suffix: int
    middle: int
    before: int = 0
    after: int = 0

    @property
    def stops(self) -> tuple[int, ...]:
        """A middle that goes on with one of these has ended: the model begins another document."""
        return self.prefix, self.suffix, self.middle

    def join(self, prompt: Prompt, ids: Sequence[int], suffix: Sequence[int]) -> tuple[tuple[int, ...], int, int]:
        """The tokens, and where among them the prompt's own begin and end.

        Args:
            prompt: as the client sent it.
            ids, suffix: its tokens and those of the text after it, as the tokenizer gave them.
        """
        before = self.before if isinstance(prompt, str) else 0
        own = self._own(ids) if isinstance(prompt, str) else ids
        head = (*ids[:before], self.prefix)
        return (*head, *own, self.suffix, *self._own(suffix), self.middle), len(head), len(head) + len(own)

    def _own(self, ids: Sequence[int]) -> Sequence[int]:
        return ids[self.before : len(ids) - self.after]


def infill(tokenizer: Tokenizer) -> Infill | None:
    """``None`` if the model has no such tokens."""
    fim = getattr(tokenizer, "fim", None)
    if fim is None or None in (fim.prefix, fim.suffix, fim.middle):
        return None
    return Infill(fim.prefix, fim.suffix, fim.middle, *getattr(tokenizer, "added", (0, 0)))
