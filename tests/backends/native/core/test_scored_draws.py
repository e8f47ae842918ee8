"""Log-probabilities that a draw tells on its way are those of a call of their own, to the bit, whatever edited the row for the draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.backends.native.core.test_sampling_twin import CONTROLS, control, packed, vocabulary
from tests.reference.core_sampling import CPU, F32, I32, sampler

from quintet import _core
from quintet.backends.native.core.types import Outcome

WIDE = 2 * 512 + 77
"""Three chunks of a row, the last of them not full."""


def check(logits: F32, tokens: I32, scored: tuple[Any, ...], alternatives: I32) -> None:
    """Each row is as if it alone had been scored, with as many alternatives as it asked for; what nobody asked for is 0."""
    assert scored[1].shape[1] == max(0, int(alternatives.max()))
    for row, (token, count) in enumerate(zip(tokens.tolist(), alternatives.tolist(), strict=True)):
        found = [part[row : row + 1] for part in scored]
        expected = [np.zeros_like(part) for part in found]
        if token >= 0 and count >= 0:
            alone: tuple[Any, ...] = CPU.score(logits[row : row + 1], np.array([token], np.int32), count)
            for whole, part in zip(expected, alone, strict=True):
                whole[..., : part.shape[1] if part.ndim == 2 else None] = part
        assert [part.tobytes() for part in found] == [part.tobytes() for part in expected]


@pytest.mark.parametrize("name", CONTROLS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_with_each_control_the_scores_are_the_models_own_and_the_tokens_what_they_are_without(name: str, data: st.DataObject) -> None:
    vocab, count = data.draw(st.sampled_from([2, 40, WIDE])), data.draw(st.integers(1, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    logits = (rng.normal(size=(count, vocab)) * 3).astype(np.float32)
    masks = np.stack([packed(row) for row in rng.random((count, vocab)) < 0.5]) if name == "guide" else None
    controls = {"temperature": data.draw(st.sampled_from([0.0, 0.5, 1.0])), "seed": 7} | data.draw(control(name, vocab))
    alternatives = np.array(data.draw(st.lists(st.integers(-1, min(vocab, 9)), min_size=count, max_size=count)), np.int32)
    text = _core.Pieces(vocabulary(vocab))
    sets = [[sampler(text, [0, 1], [1, 0, 1], **controls) for _ in range(count)] for _ in range(2)]
    positions = np.arange(count, dtype=np.uint64)
    plain, none = CPU.draw(logits, sets[0], positions, masks)
    tokens, scored = CPU.draw(logits, sets[1], positions, masks, None, alternatives)
    assert none is None
    assert scored is not None
    assert tokens.tolist() == plain.tolist()
    check(logits, tokens, scored, alternatives)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 6), right=st.integers(0, 6), wide=st.booleans())
def test_along_a_draft_each_row_that_was_drawn_is_scored_and_none_after_it(seed: int, rows: int, right: int, wide: bool) -> None:
    rng = np.random.default_rng(seed)
    vocab = 49_152 if wide else 30
    logits = (rng.normal(size=(rows, vocab)) * 3).astype(np.float32)
    likeliest = logits.argmax(axis=1)
    draft = np.array([*(token if at < right else (token + 1) % vocab for at, token in enumerate(likeliest[:-1])), -1], np.int32)
    alternatives = rng.integers(-1, 6, rows).astype(np.int32)
    drafts = (np.array([rows], np.int32), draft)
    tokens, scored = CPU.draw(logits, [sampler(vocab, temperature=0.0)], np.zeros(1, np.uint64), None, drafts, alternatives)
    drawn = min(rows, right + 1)
    assert tokens.tolist() == [*likeliest[:drawn], *[Outcome.NOT_DRAWN] * (rows - drawn)]
    assert scored is not None
    check(logits, tokens, scored, alternatives)


def test_a_row_without_a_token_has_no_scores() -> None:
    logits = np.zeros((3, 600), np.float32)
    logits[0, 5] = np.nan
    logits[1, 2] = np.inf
    masks = np.full((3, 19), 0xFFFFFFFF, np.uint32)
    masks[2] = 0
    asked = np.full(3, 4, np.int32)
    tokens, scored = CPU.draw(logits, [sampler(600) for _ in range(3)], np.zeros(3, np.uint64), masks, None, asked)
    assert tokens.tolist() == [Outcome.NOT_FINITE, Outcome.NOT_FINITE, Outcome.NO_WAY_ON]
    assert scored is not None
    check(logits, tokens, scored, asked)


@pytest.mark.parametrize("asked", [[1], [1, 1, 1], [1, 5]])
def test_alternatives_that_do_not_fit_are_refused(asked: list[int]) -> None:
    with pytest.raises(ValueError, match="draw: .*alternatives"):
        CPU.draw(np.zeros((2, 4), np.float32), [sampler(4), sampler(4)], np.zeros(2, np.uint64), None, None, np.array(asked, np.int32))
