"""What the front and the engine's process both know of a model: how it is named and loaded.

Nothing heavy is imported here, so that the front does not carry what only computing needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from quintet.inputs.tokenizer import Vocabulary

if TYPE_CHECKING:
    from quintet.backends.native.core.cpu import Cpu
    from quintet.backends.native.core.types import Encoder, Runner
    from quintet.inputs.images.layout import ImageTraits

V = TypeVar("V", bound=Vocabulary, covariant=True)
"""As much of the tokenizer as the computing side has: all of it in a thread, the ``Vocabulary`` in a process of its own."""

PAGE = 16
"""Tokens per KV-cache page, fixed by the native kernels (16 tokens are the 16 lanes of a register)."""


def longest(context: int, tokens: int, window: int) -> int:
    """Most tokens of a sequence of a model, whose pages hold so many.

    Args:
        window: that no layer sees beyond: pages before it are let go as a sequence goes on; 0 = there is none.
    """
    return context if window and tokens >= window + 2 * PAGE else min(context, tokens)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[V]):
    """A model ready to step.

    Args:
        name: public model name.
        fingerprint: ``system_fingerprint``: hash of weights file, tokenizer and numerics version.
        cpu: what the runner computes on, and tokens are chosen on too; ``None``: it needs none, and one thread is enough to choose.
        encoder, images: what it sees images with, and how; ``None`` = it does not.
        draft: a smaller model with the same tokens, to draft with; ``None`` = there is none.
    """

    runner: Runner
    tokenizer: V
    name: str
    fingerprint: str
    cpu: Cpu | None = None
    encoder: Encoder | None = None
    images: ImageTraits | None = None
    draft: Runner | None = None


class Loader(Protocol[V]):
    """Brings a model into memory, in a worker thread; raises ``ModelError`` if it cannot."""

    def __call__(self, progress: Callable[[float], None]) -> Loaded[V]: ...
