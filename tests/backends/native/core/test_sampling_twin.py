"""The core chooses as its numpy twin does: every control alone and every pair, on random rows, with random tokens before.

``QUINTET_SAMPLING_CASES`` is how many examples each of the combinations gets (``make test-sampling`` asks for enough to pass 10,000
in all). Examples in which a comparison was decided by less than 1e-5 prove nothing, since rounding may decide it differently; the last
test bounds how many these are.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.reference import sampling_twin as twin
from tests.reference.core_sampling import distribution, draw_many, sampler

from quintet import _core

CASES = int(os.environ.get("QUINTET_SAMPLING_CASES", "3"))
DECISIVE = 1e-5
LETTERS = b"abcdefghij \n:"
"""Bytes of the vocabulary; ids beyond are combinations of two."""


def floats(low: float, high: float, *special: float) -> st.SearchStrategy[float]:
    uniform = st.floats(low, high, width=32)
    return st.one_of(st.sampled_from(special), uniform) if special else uniform


def token_ids(vocab: int) -> st.SearchStrategy[int]:
    return st.integers(0, vocab - 1)


def biases(vocab: int) -> st.SearchStrategy[list[tuple[int, float]]]:
    return st.dictionaries(token_ids(vocab), floats(-8, 8, -100.0, 100.0), min_size=1, max_size=12).map(lambda found: list(found.items()))


def ids_of(vocab: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(token_ids(vocab), min_size=1, max_size=most, unique=True)


def fixed(**controls: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(controls)


def control(name: str, vocab: int) -> st.SearchStrategy[dict[str, Any]]:
    """Values that turn the control on."""
    words = st.lists(st.lists(st.integers(0, min(vocab, 4) - 1), min_size=1, max_size=3), min_size=1, max_size=4)
    alike = st.text("abc", min_size=1, max_size=5).map(str.encode)
    breakers = st.lists(st.sampled_from([b"\n", b":", b"a", b"ab", b"c d"]), max_size=3) | st.lists(alike, max_size=6)
    return {
        "guide": fixed(),
        "temperature": fixed(temperature=floats(0.0625, 3, 0.0, 0.5, 2.0)),
        "allowed_token_ids": fixed(allowed_token_ids=ids_of(vocab, 20)),
        "bad_words": fixed(bad_words=words),
        "ends": fixed(min_tokens=st.integers(0, 8), eos_ids=ids_of(vocab, 2), stop_token_ids=ids_of(vocab, 3)),
        "logit_bias": fixed(logit_bias=biases(vocab)),
        "repetition_penalty": fixed(repetition_penalty=floats(0.5, 2)),
        "frequency_penalty": fixed(frequency_penalty=floats(-2, 2)),
        "presence_penalty": fixed(presence_penalty=floats(-2, 2)),
        "dry": fixed(
            dry_multiplier=floats(0.125, 3),
            dry_base=floats(1, 3, 1.0),
            dry_allowed_length=st.integers(1, 4),
            dry_range=st.sampled_from([-1, -1, 0, 3, 8]),
            dry_breakers=breakers,
        ),
        "top_n_sigma": fixed(top_n_sigma=floats(0.125, 4)),
        "top_k": fixed(top_k=st.integers(1, 40)),
        "typical_p": fixed(typical_p=floats(0.0625, 1, 0.0), typical_within=st.booleans()),
        "top_p": fixed(top_p=floats(0.0625, 1, 0.0)),
        "min_p": fixed(min_p=floats(2**-10, 1, 1.0)),
        "min_probability": fixed(min_probability=floats(2**-10, 1, 1.0)),
        "xtc": fixed(xtc_probability=floats(0.25, 1, 1.0), xtc_threshold=floats(2**-6, 0.5)),
        "mirostat": fixed(mirostat_target=floats(0.25, 8), mirostat_lr=floats(0.0, 1.0)),
    }[name]


CONTROLS = (
    *("guide", "temperature", "allowed_token_ids", "bad_words", "ends", "logit_bias", "repetition_penalty", "frequency_penalty"),
    *("presence_penalty", "dry", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "min_probability", "xtc", "mirostat"),
)
COMBINATIONS = [*((name,) for name in CONTROLS), *itertools.combinations(CONTROLS, 2), CONTROLS[:-1]]


def vocabulary(size: int) -> list[bytes]:
    pairs = (bytes(pair) for pair in itertools.product(LETTERS, repeat=2))
    return list(itertools.islice(itertools.cycle([*(bytes([letter]) for letter in LETTERS), *pairs]), size))


@st.composite
def cases(draw: st.DrawFn, names: tuple[str, ...]) -> dict[str, Any]:
    vocab = draw(st.one_of(st.integers(1, 40), st.integers(41, 700)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = (rng.normal(size=vocab) * draw(st.sampled_from([0.5, 2.0, 6.0]))).astype(np.float32)
    if draw(st.booleans()):
        logits[rng.random(vocab) < 0.3] = -np.inf
        logits[rng.integers(vocab)] = 1.0
    controls: dict[str, Any] = {"temperature": draw(st.sampled_from([0.5, 1.0, 1.5])), "seed": draw(st.integers(0, 2**64 - 1))}
    for name in names:
        controls |= draw(control(name, vocab))
    common = st.lists(st.integers(0, min(vocab, 3) - 1), max_size=12)
    return {
        "logits": logits,
        "controls": controls,
        "prompt": tuple(draw(common)),
        "output": draw(common),
        "position": draw(st.integers(0, 2**64 - 1)),
        "mask": rng.random(vocab) < draw(st.sampled_from([0.1, 0.5, 0.95, 1.1])) if "guide" in names else None,
    }


def packed(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """A bit per token, lowest first; the bits past the vocabulary are set, as they must not matter."""
    padded = np.concatenate([mask, np.ones(-len(mask) % 32, bool)])
    return np.packbits(padded, bitorder="little").view(np.uint32)


indecisive: dict[bool, int] = {True: 0, False: 0}


def check(case: Mapping[str, Any]) -> None:
    logits, controls, position = case["logits"], case["controls"], case["position"]
    known = vocabulary(len(logits))
    seen = twin.TwinSampler(controls, case["prompt"], list(case["output"]), known)
    expected = twin.sample(logits, seen, position, case["mask"])
    ours = sampler(_core.Pieces(known), case["prompt"], case["output"], **controls)
    mask = None if case["mask"] is None else packed(case["mask"])
    probabilities = distribution(ours, logits, position, mask)
    token = int(draw_many(logits, [ours], [position], None if mask is None else mask[None])[0])
    indecisive[expected.margin < DECISIVE] += 1
    if expected.margin < DECISIVE:
        assert -2 <= token < len(logits)
        return
    assert token == expected.token
    assert {one for one, p in probabilities.items() if p > 1e-30} == {one for one, p in expected.probabilities.items() if p > 1e-30}
    for one, p in probabilities.items():
        assert abs(p - expected.probabilities[one]) < 1e-5


@pytest.mark.parametrize("names", COMBINATIONS, ids="+".join)
@given(data=st.data())
@settings(max_examples=CASES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_kept_set_probabilities_and_token_are_the_twins(names: tuple[str, ...], data: st.DataObject) -> None:
    check(data.draw(cases(names)))


def test_few_examples_were_decided_by_rounding() -> None:
    total = sum(indecisive.values())
    assert total == 0 or indecisive[True] <= max(5, total // 20)  # 0: this test was run alone
