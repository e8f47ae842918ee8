"""A Hugging Face folder computes what the GGUF file made of it does: the same bits, for every family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from tests.e2e.paged import LoadRunner, assert_same_bits, logits_of, run_alone, whole
from tests.reference.folders import GEMMAS, UNWRITTEN, write_folder
from tests.reference.tiny_model import FAMILIES, TinySpec, random_ids

TinyPath = Callable[[TinySpec], Path]
LENGTH = 80
"""Tokens: more than the tiny models' windows."""


def of_floats(spec: TinySpec) -> TinySpec:
    """The same with the types that a folder has; where gate and up are one tensor, they are of one type."""
    types = (Type.BF16,) if spec.architecture == "granitemoe" else (Type.BF16, Type.F16, Type.F32)
    return replace(spec, name=f"{spec.name}-for-folders", types=types)


PAIRED = [
    of_floats(spec) for spec in FAMILIES if not spec.freq_factors and spec.architecture not in UNWRITTEN
]  # a config.json has no frequency factors, but a rule for them


def settle_norms(path: Path) -> None:
    """Make Gemma's norms what a folder's, which are less by 1, become again: 1 more than such a number is rounded."""
    reader = gguf.GGUFReader(path, "r+")
    if reader.fields["general.architecture"].contents() in GEMMAS:
        for tensor in reader.tensors:
            if tensor.name.endswith("norm.weight"):
                tensor.data[:] = np.float32(1) + (tensor.data - np.float32(1))


@pytest.mark.parametrize("spec", PAIRED, ids=lambda spec: spec.name)
def test_a_folder_computes_the_bits_of_its_gguf_file(spec: TinySpec, tiny_path: TinyPath, load_runner: LoadRunner, tmp_path: Path) -> None:
    path = tiny_path(spec)
    settle_norms(path)
    unwindowed = {"sliding_window": None} if spec.architecture == "phi3" else None  # which GGUF files have a key for that means nothing
    folder = write_folder(tmp_path / "model", path, shards=1 + len(spec.name) % 3, changes=unwindowed)
    ids = random_ids(spec, LENGTH)
    ours, theirs = (load_runner(one, 2) for one in (folder, path))
    assert_same_bits(logits_of(ours, run_alone(ours, whole(ids))), logits_of(theirs, run_alone(theirs, whole(ids))))


@pytest.mark.parametrize("name", ["mixtral-for-folders", "olmoe-for-folders"])
def test_experts_in_one_tensor_are_those_that_come_one_by_one(
    name: str, tiny_path: TinyPath, load_runner: LoadRunner, tmp_path: Path
) -> None:
    spec = next(replace(spec, name=f"{name}-fused", types=(Type.F16,)) for spec in PAIRED if spec.name == name)
    path = tiny_path(spec)
    ids = random_ids(spec, LENGTH)
    ours, theirs = (load_runner(one, 2) for one in (write_folder(tmp_path / "model", path, fused=True), path))
    assert_same_bits(logits_of(ours, run_alone(ours, whole(ids))), logits_of(theirs, run_alone(theirs, whole(ids))))


@pytest.mark.parametrize("changes", [{"sliding_window": 21, "model_type": "mistral"}, {"sliding_window": 21, "model_type": "phi3"}])
def test_a_window_of_all_layers_is_heeded(changes: dict[str, object], tiny_path: TinyPath, load_runner: LoadRunner, tmp_path: Path) -> None:
    """What is out of every layer's window twice over changes nothing; what is inside it does."""
    architecture = "phi3" if changes["model_type"] == "phi3" else "llama"
    spec = next(spec for spec in PAIRED if spec.architecture == architecture and not spec.experts[0] and not spec.rope)
    runner = load_runner(write_folder(tmp_path / "model", tiny_path(spec), changes=changes), 2)
    ids = random_ids(spec, LENGTH)
    near, far = ids.copy(), ids.copy()
    reach = spec.layers * 20  # tokens that reach the last one over all layers, each through a window of itself and 20 before
    far[LENGTH - 2 - reach] = (far[LENGTH - 2 - reach] + 1) % spec.vocab
    near[LENGTH - 1 - reach] = (near[LENGTH - 1 - reach] + 1) % spec.vocab
    last, by_far, by_near = (logits_of(runner, run_alone(runner, whole(one)))[-1:] for one in (ids, far, near))
    assert_same_bits(last, by_far)
    assert (last != by_near).any()
