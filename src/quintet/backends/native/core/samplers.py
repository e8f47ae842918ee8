"""``Samplers`` over the compiled core."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import cast

import numpy as np

from quintet import _core
from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.types import F32, I32, U32, U64, Drafted, Drawn, Outcome, Sampler, Scores
from quintet.request import Sampling

if {outcome.name: outcome.value for outcome in Outcome} != _core.OUTCOMES:
    raise ImportError("the compiled core is of another version than quintet: build it again")

_CONTROLS = tuple(field.name for field in fields(Sampling) if field.name not in ("dry", "bad_words", "seeded", "ignore_eos"))


class NativeSamplers:
    """See ``Samplers``.

    Args:
        pieces: the bytes of each token id, as many as logits are wide.
        eos_ids: ids that end a sequence.
    """

    def __init__(self, cpu: Cpu, pieces: Sequence[bytes], eos_ids: Iterable[int]) -> None:
        self._cpu = cpu
        self._pieces = _core.Pieces(list(pieces))
        self._eos_ids = sorted(eos_ids)

    def make(self, sampling: Sampling, bad_words: Sequence[Sequence[int]], prompt: Sequence[int]) -> _core.Sampler:
        controls = {name: getattr(sampling, name) for name in _CONTROLS}
        dry = sampling.dry
        controls |= {
            "dry_multiplier": dry.multiplier,
            "dry_base": dry.base,
            "dry_allowed_length": dry.allowed_length,
            "dry_range": dry.range,
            "dry_breakers": [breaker.encode() for breaker in dry.breakers],
            "bad_words": bad_words,
            "eos_ids": self._eos_ids,
        }
        return _core.Sampler(controls, self._pieces, np.array(prompt, np.int32))

    def draw(
        self,
        logits: F32,
        samplers: Sequence[Sampler],
        positions: U64,
        masks: U32 | None = None,
        drafts: Drafted | None = None,
        alternatives: I32 | None = None,
    ) -> Drawn:
        ours = cast("Sequence[_core.Sampler]", samplers)
        drafted = None if drafts is None else (drafts.lengths, drafts.tokens)
        tokens, scored = self._cpu.draw(logits, ours, positions, masks, drafted, alternatives)
        return Drawn(tokens, None if scored is None else Scores(*scored))

    def score(self, logits: F32, targets: I32, k: int) -> Scores:
        return Scores(*self._cpu.score(logits, targets, k))
