"""200,000 draws of each sampler against its exact probabilities, by chi-square.

Each test raises a false alarm with a probability of 1e-6. The draws are seeded, so a test that passes once always passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.backends.native.core.test_sample import DRAWS, chi_square_excess
from tests.reference import sampling_twin as twin
from tests.reference.core_sampling import draw_many, sampler

from quintet import _core

PIECES = [bytes([97 + i % 20]) for i in range(60)]
PROMPT, OUTPUT = (1, 2, 3, 40), [5, 1, 2, 5, 1, 2]
LOGITS = (np.random.default_rng(12).normal(size=60) * 1.5).astype(np.float32)
BATCH = 10_000

SAMPLERS: dict[str, dict[str, Any]] = {
    "allowed_token_ids": {"allowed_token_ids": [1, 5, 8, 13, 21, 34, 55]},
    "bad_words": {"bad_words": [[1, 2, 7], [12]]},
    "min_tokens": {"min_tokens": 7, "eos_ids": [int(np.argmax(LOGITS))]},
    "logit_bias": {"logit_bias": [(4, 2.5), (9, -1.0), (11, -100.0)]},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "frequency_penalty": {"frequency_penalty": -0.7},
    "presence_penalty": {"presence_penalty": 0.9},
    "dry": {"dry_multiplier": 0.8, "dry_base": 1.5},
    "temperature": {"temperature": 1.7},
    "top_n_sigma": {"top_n_sigma": 1.2},
    "top_k": {"top_k": 12},
    "typical_p": {"typical_p": 0.8},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.08},
    "mirostat": {"mirostat_target": 2.0},
    "all": {"temperature": 0.8, "top_p": 0.95, "top_k": 50, "repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1},
}


def counts(controls: dict[str, Any]) -> npt.NDArray[np.int64]:
    """Draws at as many positions; the samplers of a batch differ in nothing."""
    pieces = _core.Pieces(PIECES)
    samplers = [sampler(pieces, PROMPT, OUTPUT, seed=77, **controls) for _ in range(BATCH)]
    drawn = [draw_many(LOGITS, samplers, range(first, first + BATCH)) for first in range(0, DRAWS, BATCH)]
    return np.bincount(np.concatenate(drawn), minlength=len(LOGITS))


def exact(controls: dict[str, Any]) -> npt.NDArray[np.float64]:
    known = twin.sample(LOGITS, twin.TwinSampler({"seed": 77, **controls}, PROMPT, list(OUTPUT), PIECES), 0).probabilities
    return np.array([known.get(token, 0.0) for token in range(len(LOGITS))])


@pytest.mark.parametrize("controls", SAMPLERS.values(), ids=list(SAMPLERS))
def test_draws_follow_the_exact_probabilities(controls: dict[str, Any]) -> None:
    expected, seen = exact(controls), counts(controls)
    assert seen[expected == 0].sum() == 0
    assert chi_square_excess(seen[expected > 0], expected[expected > 0]) < 0


def test_xtc_draws_from_the_mixture_of_struck_and_not() -> None:
    """Whether it strikes and what is drawn are independent, though both come from one block of random words."""
    controls = {"xtc_threshold": 0.05}
    struck = exact({**controls, "xtc_probability": 1.0})
    expected = 0.4 * struck + 0.6 * exact({})
    assert chi_square_excess(counts({**controls, "xtc_probability": 0.4}), expected) < 0


def test_the_test_notices_a_slightly_wrong_penalty() -> None:
    seen, expected = counts({"presence_penalty": 0.9}), exact({"presence_penalty": 1.1})
    assert chi_square_excess(seen, expected) > 0
