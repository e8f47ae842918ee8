"""docs/contributing/add-a-family.md, followed as far as a family is data: one value, and a model of it is read and computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.paged import PAGES, logits_of, run_alone, whole
from tests.reference import forward
from tests.reference.divergence import diverge
from tests.reference.tiny_model import TinySpec, random_ids, write_tiny
from tests.support.loading import native_loader

from quintet.errors import ModelError
from quintet.models.families import FAMILIES, Family
from quintet.models.gguf import open_model

TINY = TinySpec("parrot", "parrot", hidden=256, heads=4, kv_heads=2, head_dim=64, freq_factors=True)
PARROT = Family(interleaved=False, qkv_bias=None, freq_factors=True)
"""Rotates like qwen2, divides frequencies like llama 3, and has biases in some files: no family there is does all of it."""

BOUND = 1e-2
"""Mean KL to the oracle for each layer, as in ``tests/e2e/test_accuracy.py``."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "parrot.gguf", TINY)


def divergence(file: Path) -> float:
    """Mean KL of the engine's predictions to the oracle's."""
    runner = native_loader(file, threads=1, context=512)(lambda _: None).runner
    runner.allocate(PAGES)
    ids = random_ids(TINY, 128)
    return diverge(ids, forward.Reference(file)(ids), logits_of(runner, run_alone(runner, whole(ids)))).mean_kl


def test_an_architecture_without_a_value_is_refused_by_name(file: Path) -> None:
    with pytest.raises(ModelError, match=r"general\.architecture.* must be one of the supported llama, qwen2.*got 'parrot'"):
        open_model(file)


def test_with_its_value_it_is_read_and_computed_as_the_oracle_does(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "parrot", PARROT)
    monkeypatch.setitem(forward.INTERLEAVED, "parrot", False)
    spec = open_model(file).spec
    assert (spec.architecture, spec.interleaved, spec.layers[0].qkv_bias, len(spec.ropes[0].freq_factors)) == ("parrot", False, False, 32)
    assert divergence(file) < BOUND * TINY.layers


def test_a_wrong_value_is_far_outside_the_bound(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "parrot", replace(PARROT, interleaved=True))
    monkeypatch.setitem(forward.INTERLEAVED, "parrot", False)
    assert divergence(file) > 10 * BOUND * TINY.layers


def test_what_the_family_does_not_have_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "parrot", replace(PARROT, freq_factors=False))
    with pytest.raises(ModelError, match=r"rope_freqs\.weight.* not part of this architecture"):
        open_model(file)
