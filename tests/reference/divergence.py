"""How far an engine's predictions are from a reference's, position by position."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
_ROWS = 32  # float64 rows of the whole vocabulary are large: work on few at a time


def log_softmax(logits: npt.NDArray[np.floating]) -> F64:
    """Natural log-probabilities in float64 of each row of [T, V]."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


@dataclass(frozen=True)
class Divergence:
    """Comparison of two engines over positions.

    Args:
        kl: float64 [T], Kullback-Leibler divergence (reference || engine) of each position's distribution, in nats.
        same_top: bool [T], both find the same token most likely.
        reference_loss, engine_loss: float64 [T'], negative log-probability of the text's next token; the last position of a text has none.
    """

    kl: F64
    same_top: npt.NDArray[np.bool_]
    reference_loss: F64
    engine_loss: F64

    @property
    def mean_kl(self) -> float:
        return float(self.kl.mean())

    @property
    def p99_kl(self) -> float:
        return float(np.quantile(self.kl, 0.99))

    @property
    def top1(self) -> float:
        return float(self.same_top.mean())

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.engine_loss.mean()))

    @property
    def reference_perplexity(self) -> float:
        return float(np.exp(self.reference_loss.mean()))


def diverge(tokens: npt.NDArray[np.int32], reference: F32, engine: F32) -> Divergence:
    """Compare logits float32 [T, V] of the same ids [T]."""
    if reference.shape != engine.shape or len(tokens) != len(engine):
        raise ValueError(f"shapes differ: {len(tokens)} tokens, reference {reference.shape}, engine {engine.shape}")
    return join(_rows(tokens, reference, engine, start) for start in range(0, len(tokens), _ROWS))


def _rows(tokens: npt.NDArray[np.int32], reference: F32, engine: F32, start: int) -> Divergence:
    rows = slice(start, start + _ROWS)
    truth, guess = log_softmax(reference[rows]), log_softmax(engine[rows])
    following = tokens[start + 1 : start + 1 + _ROWS]
    here = np.arange(len(following))
    return Divergence(
        kl=(np.exp(truth) * (truth - guess)).sum(axis=-1),
        same_top=truth.argmax(axis=-1) == guess.argmax(axis=-1),
        reference_loss=-truth[here, following],
        engine_loss=-guess[here, following],
    )


def join(parts: Iterable[Divergence]) -> Divergence:
    """The positions of several comparisons, one after the other."""
    listed = list(parts)
    return Divergence(*(np.concatenate([getattr(part, name) for part in listed]) for name in Divergence.__dataclass_fields__))
