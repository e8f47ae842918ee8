"""What a tokenizer knows of think blocks, and how a sequence may think."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quintet.inputs.sequence import SequenceSpec
from quintet.inputs.tokenizer import Tokenizer
from quintet.thinking import Thinking, ends_inside


@dataclass(frozen=True, slots=True)
class Tags:
    """What a model writes around its thinking; see ``Thinking``."""

    start: bytes
    end: bytes
    close: tuple[int, ...]

    def open_in(self, prompt: Sequence[int], pieces: Sequence[bytes]) -> bool:
        """The prompt ends in an open block.

        Args:
            pieces: the bytes of each token id.
        """
        return ends_inside(b"".join(map(pieces.__getitem__, prompt)), self.start, self.end)

    def thinking(self, inside: bool, spec: SequenceSpec) -> Thinking | None:
        """How a sequence may think after a prompt that ends in an open block, or does not.

        A guide governs the text from its beginning, so a model that has one does not think, unless a block is open: then the guide
        governs what follows that block.
        """
        if spec.guide is not None and not inside:
            return None
        budget = spec.reasoning.budget if spec.reasoning else None
        return Thinking(self.start, self.end, self.close, inside, once=spec.guide is not None, budget=budget)


def tags_of(tokenizer: Tokenizer) -> Tags | None:
    """``None`` if the model does not think."""
    found = tokenizer.traits.think
    if found is None:
        return None
    first = found.token if found.token is not None else tokenizer.encode_inside(found.end)[0]
    close = []
    for at in range(len(found.end)):
        token = tokenizer.encode_inside(found.end[at:])[0] if at else first
        # Inside a character no rest can be written, so the tag is begun anew.
        close += [token, *[first] * (len(found.end[at].encode()) - 1)]
    return Tags(found.start.encode(), found.end.encode(), tuple(close))
