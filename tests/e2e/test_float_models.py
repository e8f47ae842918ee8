"""Models of float weights: kept they are the oracle's numbers, quantised on load they are near, and the fingerprint tells which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from tests.e2e.paged import LoadRunner, logits_of, run_alone, whole
from tests.reference.dequantize import F32
from tests.reference.divergence import diverge, log_softmax
from tests.reference.forward import Reference
from tests.reference.tiny_model import FAMILIES, KEPT_FLOATS, TinySpec, random_ids

from quintet.backends.native.core.runner import NativeRunner
from quintet.backends.native.core.sizes import packed_bytes
from quintet.backends.native.worker.weights import load_weights
from quintet.config import CacheFolder, Quantize
from quintet.errors import ModelError
from quintet.models.gguf import open_model
from quintet.models.quantize import chosen

LENGTH = 200
TinyPath = Callable[[TinySpec], Path]
BF16 = replace(FAMILIES[0], name="llama-bf16", types=(Type.BF16,))
MIXED = replace(FAMILIES[0], name="llama-mixed", types=(Type.F16, Type.Q8_0, Type.Q4_0))


class CachedInHalves(Reference):
    """The oracle with the one rounding that a kept model has: keys and values in float16."""

    def cached(self, x: F32) -> F32:
        return x.astype(np.float16).astype(np.float32)


def load(path: Path, quantize: Quantize, packs: CacheFolder | None = None) -> tuple[NativeRunner, str]:
    return load_weights(path, threads=1, context=256, isa="", progress=lambda _: None, packs=packs, quantize=quantize)


@pytest.mark.parametrize("spec", KEPT_FLOATS, ids=lambda spec: spec.name)
def test_kept_floats_are_the_oracles_numbers(spec: TinySpec, tiny_path: TinyPath, load_runner: LoadRunner) -> None:
    """Log-probabilities within 2e-3, but for what random weights make of a key that lies between two float16 and falls to either."""
    ids, path = random_ids(spec, LENGTH), tiny_path(spec)
    runner = load_runner(path, 2, quantize="none")
    ours, oracle = logits_of(runner, run_alone(runner, whole(ids))), CachedInHalves(path)(ids)
    assert diverge(ids, oracle, ours).mean_kl < 1e-6
    differences = np.abs(log_softmax(ours) - log_softmax(oracle))
    assert np.quantile(differences, 0.99) < 2e-3
    assert np.median(differences) < 2e-4


def test_what_8_and_4_bits_cost_is_far_above_that_and_in_this_order(tiny_path: TinyPath, load_runner: LoadRunner) -> None:
    """The control, and a bound: random weights lose most."""
    ids, path = random_ids(BF16, LENGTH), tiny_path(BF16)
    oracle = CachedInHalves(path)(ids)
    runners = (load_runner(path, 2, quantize=quantize) for quantize in ("none", "q8", "q4"))
    none, q8, q4 = (diverge(ids, oracle, logits_of(one, run_alone(one, whole(ids)))).mean_kl for one in runners)
    assert none < 1e-6 < 1e-4 < q8 < 2e-2 < 0.1 < q4 < 1


@pytest.mark.parametrize("spec", [*FAMILIES, *KEPT_FLOATS], ids=lambda spec: spec.name)
def test_the_memory_of_each_choice_is_known_before_loading(spec: TinySpec, tiny_path: TinyPath) -> None:
    """And so every matrix of every family is among those that are quantised or kept."""
    path = tiny_path(spec)
    file = open_model(path)
    choices: tuple[Quantize, ...] = ("q8", "q4", "none") if spec in KEPT_FLOATS else ("q8",)
    for choice in choices:
        told = sum(packed_bytes(one) for one in chosen(file.tensors, choice).values() if one.rows > 1 and one.rows != spec.experts[0])
        assert load(path, choice)[0].weight_bytes == told


def test_the_fingerprint_tells_what_became_of_the_weights(tiny_path: TinyPath) -> None:
    of_floats = {load(tiny_path(BF16), quantize)[1] for quantize in ("q8", "q4", "none")}
    assert len(of_floats) == 3
    quantised = tiny_path(replace(BF16, name="llama-q8", types=(Type.Q8_0,)))
    assert load(quantised, "q8")[1] == load(quantised, "none")[1]


@pytest.mark.parametrize("quantize", ["q8", "q4", "none"])
def test_a_kept_pack_has_the_bits_that_packing_gives(quantize: Quantize, tiny_path: TinyPath, tmp_path: Path) -> None:
    ids, packs = random_ids(BF16, 20), CacheFolder(str(tmp_path / "packs"), 1 << 30)
    seen = []
    for cache in (None, packs, packs):
        runner, fingerprint = load(tiny_path(BF16), quantize, cache)
        runner.allocate(4)
        seen.append((fingerprint, logits_of(runner, run_alone(runner, whole(ids))).tobytes()))
    assert seen[0] == seen[1] == seen[2]


def test_a_choice_that_a_model_cannot_have_is_refused_in_one_line(tiny_path: TinyPath) -> None:
    with pytest.raises(ModelError, match=r"^llama-mixed.gguf: --quantize none needs .* they are F16 and Q8_0 and Q4_0\.$"):
        load(tiny_path(MIXED), "none")
    with pytest.raises(ModelError, match=r"--quantize q4 is for float weights \(F32, F16, BF16\), but its matrices are Q8_0\.$"):
        load(tiny_path(replace(BF16, name="llama-q8", types=(Type.Q8_0,))), "q4")


def test_of_a_mixed_model_only_the_float_matrices_become_4_bits(tiny_path: TinyPath) -> None:
    q8, q4 = (load(tiny_path(MIXED), quantize)[0].weight_bytes for quantize in ("q8", "q4"))
    floats = [one for one in chosen(open_model(tiny_path(MIXED)).tensors, "q4").values() if one.quantize == "q4" and one.type == "F16"]
    assert q8 - q4 == sum(packed_bytes(replace(one, quantize="q8")) - packed_bytes(one) for one in floats) > 0
