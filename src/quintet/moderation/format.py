"""How a moderation model is asked, and what its answer means, as values. Plain code over values."""

from __future__ import annotations

import re
from dataclasses import dataclass

PROMPT, OUTPUT = "{prompt}", "{output}"
"""Stand in a layout for the texts that are judged."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of what a moderation model is given.

    Args:
        control: the text is that of a control token; otherwise no text in it is one's, whoever wrote it.
    """

    text: str
    control: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """What a moderation model is given to judge one text.

    Args:
        text: as the model was trained on it, without the beginning-of-sequence token, with ``{prompt}`` and ``{output}``.
        after: what the model writes before its answer; empty = nothing but white space.
    """

    text: str
    after: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """One thing that is asked of each text.

    Args:
        prompt: about a prompt alone.
        output: about an output, of which the prompt is the context.
        category: what "unsafe" means here; empty = the model tells that itself, or not at all.
    """

    prompt: Layout
    output: Layout
    category: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One kind of moderation models.

    Args:
        source: where it is documented.
        questions: all of them are asked; a text is unsafe if one of the answers says so.
        safe, unsafe: how the answers begin, in lower case, and each with another letter.
        control: texts in the layouts that must be tokens of the model.
        threshold: a text is unsafe if the probability of ``unsafe``, as against ``safe``, is at least this.
        categories: (code, name) of those that an answer may name after ``unsafe``.
        most: tokens of an answer.
    """

    name: str
    source: str
    questions: tuple[Question, ...]
    safe: str
    unsafe: str
    control: tuple[str, ...] = ()
    threshold: float = 0.5
    categories: tuple[tuple[str, str], ...] = ()
    most: int = 4

    def parts(self, layout: Layout, prompt: str, output: str = "") -> list[Part]:
        """What the model is given. A text that is judged is never read as a control token or as a place for another one."""
        judged = {PROMPT: prompt, OUTPUT: output}
        marks = "|".join(map(re.escape, (*judged, *self.control)))
        parts: list[Part] = []
        run = ""  # of text without a control token
        for piece in re.split(f"({marks})", layout.text):
            if piece in self.control:
                parts += [Part(run), Part(piece, control=True)]
                run = ""
            else:
                run += judged.get(piece, piece)
        return [part for part in (*parts, Part(run)) if part.text]
