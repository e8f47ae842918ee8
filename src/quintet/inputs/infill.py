"""Fill in the middle: text around a gap, in the form that the model was trained on. Plain code over values.

The form is prefix-suffix-middle (Bavarian et al. 2022, "PSM"): ``[BOS] <prefix> prompt <suffix> suffix <middle>``, or, where the server is
told so, suffix-prefix-middle ("SPM"): ``[BOS] <suffix> suffix <prefix> prompt <middle>``. No GGUF file says which a model likes, and
llama.cpp has the same switch for the same two forms, ``--spm-infill``, off by default. BOS only where the tokenizer puts one before a
text; a prompt of token ids is taken as it is, between the markers.

``join`` is that form for a completion's ``suffix``, ``fill`` for ``/infill``, where text of other files goes before it and too long a
surrounding is cut. "Source": llama.cpp, tools/server/server-common.cpp, format_prompt_infill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quintet.inputs.tokenizer import Tokenizer
from quintet.request import Gap, Prompt

BATCH = 2048
"""Source: "pick FIM context to fit in a batch (ratio prefix:suffix = 3:1)"; a batch is 2048 tokens by default."""

# Source: the project's and the file's own name are these, whatever they are, and the last goes before a chunk of text where the model
# has no token for it.
PROJECT, FILE, SNIPPET = "myproject\n", "filename\n", "\n\n--- snippet ---\n\n"

_ROOM = 4
"""For the markers that a batch has no place for, a BOS, and one token to generate. The source keeps none, and can overflow."""


class Joined(NamedTuple):
    """A prompt and a suffix in the form.

    Args:
        start, end: where the prompt's own tokens are among all.
    """

    tokens: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Infill:
    """A model's fill-in-the-middle tokens, and how they are put around a gap.

    Args:
        first: what the tokenizer puts before a text.
        after: how many tokens it puts after one.
        repo, separator: for prompts over several files; ``None`` = the model has none.
        suffix_first: the text after the gap goes before the text before it.
    """

    prefix: int
    suffix: int
    middle: int
    first: tuple[int, ...] = ()
    after: int = 0
    repo: int | None = None
    separator: int | None = None
    suffix_first: bool = False

    @property
    def stops(self) -> tuple[int, ...]:
        """A middle that goes on with one of these has ended: the model begins another document."""
        return self.prefix, self.suffix, self.middle

    def join(self, prompt: Prompt, own: Sequence[int], suffix: Sequence[int]) -> Joined:
        """The form around a gap between a prompt and a suffix.

        Args:
            prompt: as the client sent it.
            own: of it, what is to be between the markers.
            suffix: the tokens of the text after it, which stands inside a longer one. Source: Code Llama's ``encode_infilling``: "Encode a
                string without an implicit leading space".
        """
        tokens, start = self._around(self.first if isinstance(prompt, str) else (), own, suffix)
        return Joined(tokens, start, start + len(own))

    def fill(self, gap: Gap, ids: Mapping[str, Sequence[int]], line: Sequence[int], context: int) -> tuple[int, ...]:
        """The prompt: ``[extra] [BOS] <prefix> prefix line <suffix> suffix <middle>``, or with the suffix's part first.

        The end of the prefix, the beginning of the suffix and the end of the extra text are taken, as much as fits: three quarters of a
        batch, a quarter, and what remains of the context.

        Args:
            ids: of each of ``texts_of(gap)``.
            line: its line's ids.
            context: most tokens of prompt and completion; below 4096 a batch is half of it, lest the prompt fill it.
        """
        batch = min(BATCH, context // 2)
        before = (*_last(ids[gap.prefix], 3 * (batch // 4)), *line)
        after = ids[gap.suffix][: max(0, batch // 4 - (2 + len(line)))]
        extra = _last(self._extra(gap, ids), max(0, context - batch - 2 * gap.most - _ROOM))
        tokens, _ = self._around((*extra, *self.first), before, after)
        return tokens

    def _around(self, first: Sequence[int], before: Sequence[int], after: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """The form, and where in it ``before`` begins."""
        if self.suffix_first:
            head = (*first, self.suffix, *after, self.prefix)
            return (*head, *before, self.middle), len(head)
        head = (*first, self.prefix)
        return (*head, *before, self.suffix, *after, self.middle), len(head)

    def own(self, ids: Sequence[int]) -> Sequence[int]:
        """Of a text's tokens those that the tokenizer did not put around it."""
        return ids[len(self.first) : len(ids) - self.after]

    def _extra(self, gap: Gap, ids: Mapping[str, Sequence[int]]) -> list[int]:
        """Page: "If the model has `FIM_REPO` and `FIM_FILE_SEP` tokens, the repo-level pattern is used"; source: even with no text."""
        made = [] if self.repo is None else [self.repo, *ids[PROJECT]]
        for heading, text in gap.extra:
            made += ids[SNIPPET] if self.separator is None else [self.separator, *ids[heading]]
            made += ids[text]
        return made if self.separator is None else [*made, self.separator, *ids[FILE]]


def infill(tokenizer: Tokenizer, suffix_first: bool = False) -> Infill | None:
    """``None`` if one of the three tokens is missing from the vocabulary."""
    fim, (before, after) = tokenizer.traits.fim, tokenizer.traits.added
    if fim.prefix is None or fim.suffix is None or fim.middle is None:
        return None
    first = tuple(tokenizer.encode("")[:before])
    return Infill(fim.prefix, fim.suffix, fim.middle, first, after, fim.repo, fim.separator, suffix_first)


def texts_of(gap: Gap) -> list[str]:
    """What must be tokenised as it stands, each by itself."""
    return list(dict.fromkeys([gap.prefix, gap.suffix, PROJECT, FILE, SNIPPET, *(part for chunk in gap.extra for part in chunk)]))


def _last(ids: Sequence[int], most: int) -> Sequence[int]:
    return ids[max(0, len(ids) - most) :]
