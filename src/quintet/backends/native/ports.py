"""What the front and the engine's process both know of a model: how it is named and loaded, and what is needed of its tokenizer.

Nothing heavy is imported here, so that the front does not carry what only computing needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from quintet.backends.native.core import Runner

PAGE = 16
"""Tokens per KV-cache page, fixed by the native kernels (16 tokens are the 16 lanes of a register)."""


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer (``models/tokenizer.py``, or the toy's bytes)."""

    @property
    def pieces(self) -> Sequence[bytes]:
        """Bytes of each token id; empty for control tokens."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a sequence."""
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


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to step.

    Args:
        name: public model name.
        fingerprint: ``system_fingerprint``: hash of weights file, tokenizer and numerics version.
    """

    runner: Runner
    tokenizer: Tokenizer
    name: str
    fingerprint: str


class Loader(Protocol):
    """Brings a model into memory, in a worker thread; raises ``ModelError`` if it cannot."""

    def __call__(self, progress: Callable[[float], None]) -> Loaded: ...
