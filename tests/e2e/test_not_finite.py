"""What is not finite in a model's weights is never hidden: its logits are no numbers, and a request ends with an error that says so.

A maximum that takes the other operand, a cap, or a weight of 0 for what is no number would make a broken file answer as a sound one does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.e2e.paged import F32, Ids, logits_of, pages_for, run_alone, whole
from tests.reference.tiny_model import FAMILIES, TinySpec, random_ids
from tests.support.loading import native_loader

from quintet.backends.native.core.cpu import isas
from quintet.config import KvType

SPECS = [spec for spec in FAMILIES if spec.name in ("llama-tied", "qwen2-tied", "gemma2", "gpt-oss", "mixtral", "starcoder2")]
"""Plain; with biases; with caps; with sinks and clamped gates; with experts; with LayerNorms."""


def logits(path: Path, ids: Ids, kv_type: KvType, isa: str = "") -> F32:
    """Of a model that is not kept."""
    runner = native_loader(path, threads=1, context=64, isa=isa, kv_type=kv_type)(lambda _: None).runner
    runner.allocate(pages_for(len(ids)))
    return logits_of(runner, run_alone(runner, whole(ids)))


def broken(path: Path, source: Path, name: str) -> Path:
    """The file with all bits of a tensor set: NaN in every type."""
    path.write_bytes(source.read_bytes())
    reader = gguf.GGUFReader(path, "r+")
    tensor = next(tensor for tensor in reader.tensors if tensor.name == name)
    tensor.data.view(np.uint8).reshape(-1)[...] = 0xFF
    reader.data.flush()
    return path


@pytest.mark.parametrize("isa", dict.fromkeys((isas()[0], "avx2" if "avx2" in isas() else "portable", "portable")))
@pytest.mark.parametrize("kv_type", ["f16", "q8"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_tensor_that_is_not_finite_is_seen_in_the_logits(
    spec: TinySpec, kv_type: KvType, isa: str, tiny_path: Callable[[TinySpec], Path], tmp_path: Path
) -> None:
    source = tiny_path(spec)
    names = [tensor.name for tensor in gguf.GGUFReader(source).tensors if not tensor.name.startswith("blk.1.")]
    for number, name in enumerate(names):
        found = logits(broken(tmp_path / f"{number}.gguf", source, name), random_ids(spec, 20), kv_type, isa)
        assert not np.isfinite(found).any(), name


@pytest.mark.parametrize("kv_type", ["f16", "q8"])
def test_one_token_that_is_not_finite_is_seen_by_those_after_it_only(
    kv_type: KvType, tiny_path: Callable[[TinySpec], Path], tmp_path: Path
) -> None:
    """Its key alone would weigh nothing where exponentials of no number are 0."""
    spec = next(spec for spec in SPECS if spec.name == "qwen2-tied")
    path, ids = tmp_path / "a.gguf", random_ids(spec, 40)
    ids[ids == 7] = 8
    path.write_bytes(tiny_path(spec).read_bytes())
    expected = logits(path, ids, kv_type)
    ids[23] = 7
    reader = gguf.GGUFReader(path, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight").data.view(np.uint8)[7] = 0xFF
    reader.data.flush()
    found = logits(path, ids, kv_type)
    assert not np.isfinite(found[23:]).any()
    columns = [column for column in range(spec.vocab) if column != 7]  # the embedding is the output too
    assert (found[:23, columns] == expected[:23, columns]).all()
