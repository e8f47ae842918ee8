"""The native sampler under test: controls by name, one row at a time or many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from quintet import _core, _core_testing

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]

CPU = _core.Cpu(threads=2)

OFF: dict[str, object] = {
    **{
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 0,
        "top_k": 0,
        "min_p": 0.0,
        "min_probability": 0.0,
        "typical_p": 1.0,
        "typical_within": False,
        "top_n_sigma": 0.0,
    },
    **{"xtc_probability": 0.0, "xtc_threshold": 0.1, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    **{"dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_range": -1, "dry_breakers": []},
    **{"mirostat_target": 0.0, "mirostat_lr": 0.1, "logit_bias": [], "allowed_token_ids": [], "bad_words": []},
    **{"min_tokens": 0, "eos_ids": [], "stop_token_ids": []},
}
"""Every control, off."""


def pieces(vocab: int) -> _core.Pieces:
    """A vocabulary of tokens without text, for controls that look at none."""
    return _core.Pieces([b""] * vocab)


def sampler(vocab: int | _core.Pieces, prompt: Sequence[int] = (), output: Sequence[int] = (), **controls: Any) -> _core.Sampler:
    """A sampler that has seen a prompt and an output; controls that are not given are off."""
    assert controls.keys() <= OFF.keys()
    made = _core.Sampler(OFF | controls, pieces(vocab) if isinstance(vocab, int) else vocab, np.array(prompt, np.int32))
    for token in output:
        made.accept(token)
    return made


def draw_many(logits: F32, samplers: Sequence[_core.Sampler], positions: Sequence[int], masks: U32 | None = None) -> I32:
    """One draw of each sampler at its position, from rows [R, V] or all from the same row [V]."""
    rows = np.ascontiguousarray(np.broadcast_to(logits, (len(samplers), logits.shape[-1])))
    return CPU.draw(rows, list(samplers), np.array(positions, np.uint64), masks)[0]


def draw(logits: F32, position: int = 0, mask: U32 | None = None, **controls: Any) -> int:
    """One token of a row [V] by a fresh sampler."""
    return int(draw_many(logits, [sampler(len(logits), **controls)], [position], None if mask is None else mask[None])[0])


def distribution(made: _core.Sampler, logits: F32, position: int = 0, mask: U32 | None = None) -> dict[int, float]:
    """What the next draw chooses from: token -> probability."""
    ids, probabilities = _core_testing.distribution(CPU, made, logits[None], position, None if mask is None else mask[None])
    return dict(zip(ids.tolist(), probabilities.tolist(), strict=True))
