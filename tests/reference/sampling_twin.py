"""Scoring and sampling of ``csrc/sample.cpp`` written again in plain numpy and float64, straight from the description of the order:
greedy, temperature, top-p over tokens ranked by logit (ties by lower id), a draw that walks the kept tokens in id order.

Philox4x32-10 follows Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

GREEDY_BELOW = np.float32(1e-5)
"""Temperatures below this choose greedily."""

_MASK = 0xFFFFFFFF


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 of four 32-bit counter words and two key words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & _MASK, (first >> 32) ^ c3 ^ k1, first & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """The top 24 bits of the first word, in [0, 1): key = seed, counter = position, both low word first."""
    words = philox((position & _MASK, position >> 32, 0, 0), (seed & _MASK, seed >> 32))
    return float((words[0] >> 8) * 2.0**-24)


def ranking(logits: F32) -> npt.NDArray[np.intp]:
    """Ids, most likely first, ties by lower id; NaN counts as minus infinity."""
    return np.argsort(-np.where(np.isnan(logits), -np.inf, logits), kind="stable")


def log_softmax(logits: F32 | F64) -> F64:
    """Natural logarithm of the softmax of a finite row [V]."""
    shifted = logits.astype(np.float64) - float(logits.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def kept_tokens(logits: F32, temperature: float, top_p: float) -> tuple[npt.NDArray[np.intp], F64]:
    """Tokens still in play after temperature and top-p, in id order, with their probabilities before top-p."""
    probabilities = np.exp(log_softmax(logits / np.float64(temperature)))
    order = ranking(logits)
    before = np.cumsum(probabilities[order]) - probabilities[order]
    count = len(order) if top_p >= 1 else max(1, int(np.sum(before < top_p)))
    kept = np.sort(order[:count])
    return kept, probabilities[kept]


@dataclass(frozen=True)
class Draw:
    """A sampled token.

    Args:
        token: the id.
        margin: least distance, as a share of the mass, by which any comparison that led here was decided; infinite if none was made.
    """

    token: int
    margin: float


def sample(logits: F32, temperature: float, top_p: float, seed: int, position: int) -> Draw:
    """One token of a finite row [V]."""
    if not np.float32(temperature) >= GREEDY_BELOW:
        return Draw(int(ranking(logits)[0]), np.inf)
    kept, probabilities = kept_tokens(logits, temperature, top_p)
    ends = np.cumsum(probabilities / probabilities.sum())
    target = uniform(seed, position)
    at = min(int(np.searchsorted(ends, target, side="right")), len(kept) - 1)
    return Draw(int(kept[at]), min(_nearest(ends[:-1], target), _top_p_margin(logits, temperature, top_p)))


def _nearest(boundaries: F64, value: float) -> float:
    return float(np.abs(boundaries - value).min()) if len(boundaries) else np.inf


def _top_p_margin(logits: F32, temperature: float, top_p: float) -> float:
    if not 0 < top_p < 1:
        return np.inf
    probabilities = np.sort(np.exp(log_softmax(logits / np.float64(temperature))))[::-1]
    return _nearest(np.cumsum(probabilities), top_p)
