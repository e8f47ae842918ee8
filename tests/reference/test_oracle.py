"""The oracle itself, against llama.cpp: with float32 weights, keys and values both compute the same thing, but for the order of sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.reference.divergence import diverge, log_softmax
from tests.reference.forward import GEMMAS, Reference
from tests.reference.tiny_model import FLOAT_FAMILIES, RECORDED, RECORDED_ROWS, TinySpec, random_ids, write_tiny


@pytest.mark.parametrize("spec", FLOAT_FAMILIES, ids=lambda spec: spec.name)
def test_the_reference_is_llama_cpp_in_float32(spec: TinySpec, tmp_path: Path) -> None:
    with np.load(RECORDED) as recorded:
        theirs = recorded[spec.name]
    ids = random_ids(spec, max(RECORDED_ROWS) + 1)
    ours = Reference(write_tiny(tmp_path / "tiny.gguf", spec))(ids)[RECORDED_ROWS]
    assert ours.std() > 2
    table = spec.architecture in (*GEMMAS, "starcoder2")  # llama.cpp looks GELU up in a table of 16-bit floats
    np.testing.assert_allclose(ours, theirs, atol=6e-3 if table else 1e-3)
    assert diverge(ids[RECORDED_ROWS], theirs, ours).mean_kl < (1e-6 if table else 1e-8)


def test_a_gemma_2_whose_file_does_not_say_them_has_its_caps_and_its_window(tmp_path: Path) -> None:
    spec = next(one for one in FLOAT_FAMILIES if one.name == "gemma2")
    said = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "attention.sliding_window": 4096}
    old, new = (Reference(write_tiny(tmp_path / f"{len(keys)}.gguf", replace(spec, metadata=keys))) for keys in ({}, said))
    ids = random_ids(spec, 32)
    np.testing.assert_array_equal(old(ids), new(ids))
    assert old.window == new.window == 4096


def test_the_same_specification_writes_the_same_bytes(tmp_path: Path) -> None:
    spec = FLOAT_FAMILIES[0]
    first, second, other = (
        write_tiny(tmp_path / f"{i}.gguf", one).read_bytes() for i, one in enumerate([spec, spec, replace(spec, seed=spec.seed + 1)])
    )
    assert first == second != other


def test_divergence_is_the_textbook_sum() -> None:
    """Two distributions worked out by hand: KL(p || q) = sum p log(p / q)."""
    p, q = np.array([[0.5, 0.25, 0.25]]), np.array([[0.25, 0.5, 0.25]])
    tokens = np.array([1, 0], dtype=np.int32)
    twice = [np.repeat(np.log(one), 2, axis=0).astype(np.float32) for one in (p, q)]
    found = diverge(tokens, twice[0], twice[1])
    np.testing.assert_allclose(found.kl, 0.5 * np.log(2) + 0.25 * np.log(0.5), atol=1e-6)
    assert found.top1 == 0
    np.testing.assert_allclose([found.reference_perplexity, found.perplexity], [2, 4], rtol=1e-6)  # the text's next token is 0
    assert diverge(tokens, twice[0], twice[0]).mean_kl == 0


def test_log_softmax_does_not_overflow() -> None:
    np.testing.assert_allclose(log_softmax(np.array([[1e4, 1e4, -1e4]], dtype=np.float32))[0, :2], -np.log(2))
