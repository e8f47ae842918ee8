"""Fill in the middle: a prompt and the text after it, in the form that the model was trained on. Plain code over values.

The form is prefix-suffix-middle (Bavarian et al. 2022, "PSM"): ``[BOS] <prefix> prompt <suffix> suffix <middle>``, or, where the server is
told so, suffix-prefix-middle ("SPM"): ``[BOS] <suffix> suffix <prefix> prompt <middle>``. No GGUF file says which a model likes, and
llama.cpp has the same switch for the same two forms, ``--spm-infill``, off by default. BOS only where the tokenizer puts one before a
text; a prompt of token ids is taken as it is, between the markers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quintet.backends.base import FimTokens
from quintet.inputs.tokenizer import Tokenizer
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
    suffix_first: bool = False

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
        tail = (self.suffix, *self._own(suffix))
        head = (*ids[:before], *(tail if self.suffix_first else ()), self.prefix)
        return (*head, *own, *(() if self.suffix_first else tail), self.middle), len(head), len(head) + len(own)

    def _own(self, ids: Sequence[int]) -> Sequence[int]:
        return ids[self.before : len(ids) - self.after]


def infill(tokenizer: Tokenizer, suffix_first: bool = False) -> Infill | None:
    """``None`` if the model has no such tokens."""
    marks = fim_tokens(tokenizer, suffix_first)
    if marks is None:
        return None
    before, after = getattr(tokenizer, "added", (0, 0))
    return Infill(marks.prefix, marks.suffix, marks.middle, before, after, suffix_first)


def fim_tokens(tokenizer: Tokenizer, suffix_first: bool) -> FimTokens | None:
    """Those of the vocabulary; ``None`` if one of the three is missing."""
    fim = getattr(tokenizer, "fim", None)
    if fim is None or None in (fim.prefix, fim.suffix, fim.middle):
        return None
    before, _ = getattr(tokenizer, "added", (0, 0))
    first = tokenizer.encode("")[0] if before else None
    return FimTokens(fim.prefix, fim.suffix, fim.middle, fim.repo, fim.separator, first, suffix_first)
