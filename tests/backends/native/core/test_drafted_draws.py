"""Drawing along a draft is drawing one token at a time: the same tokens, and the same sampler afterwards, whatever was drafted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.backends.native.core.test_sampling_twin import CONTROLS, control, packed, vocabulary
from tests.reference.core_sampling import CPU, draw_many, sampler

from quintet import _core, _core_testing
from quintet.backends.native.core.types import Outcome

ROWS = 6


@st.composite
def sequences(draw: st.DrawFn, names: tuple[str, ...]) -> dict[str, Any]:
    """A sequence's controls and past, the rows it would meet one by one, and how far its draft is to be right."""
    vocab = draw(st.integers(2, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    controls: dict[str, Any] = {"temperature": draw(st.sampled_from([0.0, 0.5, 1.5])), "seed": draw(st.integers(0, 2**64 - 1))}
    for name in names:
        controls |= draw(control(name, vocab))
    return {
        "logits": (rng.normal(size=(ROWS, vocab)) * 3).astype(np.float32),
        "masks": np.stack([packed(row) for row in rng.random((ROWS, vocab)) < 0.5]) if "guide" in names else None,
        "sampler": lambda: sampler(_core.Pieces(vocabulary(vocab)), [0, 1], [1, 0, 1], **controls),
        "right": draw(st.integers(0, ROWS)),
        "length": draw(st.integers(1, ROWS)),
        "position": draw(st.integers(0, 2**40)),
    }


def one_by_one(case: dict[str, Any], count: int) -> tuple[_core.Sampler, list[int]]:
    """A sampler that has drawn at most ``count`` tokens, and they; it has accepted all but the last, or stopped at one it refused."""
    made, tokens = case["sampler"](), []
    for row in range(count):
        mask = None if case["masks"] is None else case["masks"][row : row + 1]
        tokens.append(int(draw_many(case["logits"][row], [made], [case["position"] + row], mask)[0]))
        if tokens[-1] < 0:
            break
        if row < count - 1:
            made.accept(tokens[-1])
    return made, tokens


def drafted_for(case: dict[str, Any]) -> tuple[list[int], list[int]]:
    """A draft that is right for ``right`` tokens, with -1 at its end; and the tokens that must come of it."""
    length, vocab = case["length"], case["logits"].shape[1]
    _, tokens = one_by_one(case, length)
    draft = [token if row < case["right"] else (token + 1) % vocab for row, token in enumerate(tokens)]
    draft = [*draft, *[0] * (length - len(draft))]
    draft[-1] = -1
    drawn = min(len(tokens), case["right"] + 1)
    return draft, tokens[:drawn] + [Outcome.NOT_DRAWN] * (length - drawn)


def state(made: _core.Sampler, case: dict[str, Any], drawn: list[int]) -> tuple[object, ...]:
    """What can be told of a sampler once it has accepted the last token too: what it has counted, and what it would draw from next."""
    if drawn and drawn[-1] >= 0:
        made.accept(drawn[-1])
    ids, masses = _core_testing.distribution(CPU, made, case["logits"][-1:], case["position"] + ROWS, None)
    return made.accepted, _core_testing.surprise_bound(made), ids.tolist(), masses.tolist()


def check(cases: list[dict[str, Any]]) -> None:
    plans = [drafted_for(case) for case in cases]
    samplers = [case["sampler"]() for case in cases]
    width = cases[0]["logits"].shape[1]
    masks = [case["masks"] if case["masks"] is not None else np.full((ROWS, -(-width // 32)), 2**32 - 1, np.uint32) for case in cases]
    found, _ = CPU.draw(
        np.concatenate([case["logits"][: case["length"]] for case in cases]),
        samplers,
        np.array([case["position"] for case in cases], np.uint64),
        np.concatenate([mask[: case["length"]] for mask, case in zip(masks, cases, strict=True)]),
        (np.array([case["length"] for case in cases], np.int32), np.array([one for draft, _ in plans for one in draft], np.int32)),
    )
    assert found.tolist() == [one for _, expected in plans for one in expected]
    for case, made, (_, expected) in zip(cases, samplers, plans, strict=True):
        drawn = [token for token in expected if token != Outcome.NOT_DRAWN]
        alone, tokens = one_by_one(case, len(drawn))
        assert tokens == drawn
        assert state(made, case, drawn) == state(alone, case, drawn)


@pytest.mark.parametrize("name", CONTROLS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_each_control_draws_the_same_along_a_draft(name: str, data: st.DataObject) -> None:
    check([data.draw(sequences((name,)))])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_all_controls_together_draw_the_same_along_a_draft(data: st.DataObject) -> None:
    check([data.draw(sequences(CONTROLS[:-1]))])


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_sequences_with_drafts_of_different_lengths_do_not_disturb_each_other(data: st.DataObject) -> None:
    cases = [data.draw(sequences(("temperature", "frequency_penalty"))) for _ in range(data.draw(st.integers(2, 5)))]
    width = min(case["logits"].shape[1] for case in cases)
    kept = [case for case in cases if case["logits"].shape[1] == width]
    check(kept)


@pytest.mark.parametrize(
    ("lengths", "tokens"), [([2], [0, 1]), ([0, 3], [0, 0, -1]), ([4, -1], [0, 0, -1]), ([1, 1], [0, 0, -1]), ([1, 2], [-1, -1])]
)
def test_rows_that_do_not_add_up_are_refused(lengths: list[int], tokens: list[int]) -> None:
    drafted = (np.array(lengths, np.int32), np.array(tokens, np.int32))
    with pytest.raises(ValueError, match="draw:"):
        CPU.draw(np.zeros((3, 4), np.float32), [sampler(4), sampler(4)], np.zeros(2, np.uint64), None, drafted)
