"""What is needed of a tokenizer (``models/tokenizer.py``, or the toy's bytes), and the part of it that an engine's worker needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quintet.models.traits import Traits


class Vocabulary(Protocol):
    """What computing needs: how many tokens there are, their bytes, and which of them end a sequence."""

    @property
    def pieces(self) -> Sequence[bytes]:
        """Bytes of each token id; empty for control tokens."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a sequence."""
        ...


class Tokenizer(Vocabulary, Protocol):
    """And what preparing a request needs: text to ids. There is no way back, since a vocabulary is bytes."""

    @property
    def traits(self) -> Traits:
        """What it tells of its model."""
        ...

    def encode(self, text: str) -> list[int]:
        """Prompt text to ids, with a BOS only if the model's metadata asks for one. Special-token text is recognised."""
        ...

    def encode_inside(self, text: str) -> list[int]:
        """Ids of text that stands inside a longer one: nothing is put before or after it."""
        ...

    def encode_quoted(self, text: str) -> list[int]:
        """Ids of text in which a control token's text is text like any other: no BOS or EOS is put to it."""
        ...

    def spelling(self, token: int) -> str:
        """How the vocabulary itself writes a token, which need not be its text (``Ġthe``, ``<|im_end|>``); empty for an id beyond it."""
        ...


SEPARATOR = "<|endoftext|>"


def separator_of(tokenizer: Tokenizer) -> int | None:
    """The token that stood before a document when the model was trained; ``None`` if no token ends a sequence.

    OpenAI's page, prompt: "`<|endoftext|>` is the document separator that the model sees during training, so if a prompt is not specified
    the model will generate as if from the beginning of a new document." A model without a token of this name has its own end there; the
    end of a turn in a chat, or a name that some other format has for an end, begins none.
    """
    spelled = {tokenizer.spelling(token): token for token in sorted(tokenizer.eos_ids, reverse=True)}
    names = (SEPARATOR, tokenizer.traits.roles.eos)
    return next((spelled[name] for name in names if name in spelled), min(tokenizer.eos_ids, default=None))
