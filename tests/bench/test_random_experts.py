"""The random model of many experts that engines are measured on: one that is read as what it says, and whose tokens part ways."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.reference.tiny_model import FAMILIES, write_tiny

from bench.engines.model import work
from bench.engines.random_experts import TYPES, Shape, random_model
from quintet.models.gguf import open_model

SIZES = {"layers": 2, "hidden": 256, "heads": 4, "kv_heads": 1, "experts": 8, "used": 2, "ffn": 512}


@pytest.fixture(scope="module", params=TYPES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Shape, Path]:
    folder, shape = tmp_path_factory.mktemp("experts"), Shape(request.param, **SIZES)
    return shape, random_model(folder, shape, write_tiny(folder / "tokenizer.gguf", FAMILIES[0]))


def test_it_is_read_as_what_it_says(made: tuple[Shape, Path]) -> None:
    shape, path = made
    file = open_model(path)
    experts = file.spec.layers[0].experts
    assert experts is not None
    assert (experts.count, experts.used, experts.ffn, file.spec.hidden, len(file.spec.layers)) == (8, 2, 512, 256, 2)
    assert {file.tensors[name].type for name in ("embed", "output", "0.q", "1.down_exps")} == {shape.type}
    assert file.spec.vocab == FAMILIES[0].vocab


def test_its_weights_have_no_common_direction(made: tuple[Shape, Path]) -> None:
    """A mean would make all tokens alike after a few layers, and all take the same experts, which is faster than any real model."""
    _, path = made
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, spread in (("token_embd.weight", 1.0), ("blk.0.ffn_up_exps.weight", 256**-0.5), ("blk.1.ffn_down_exps.weight", 512**-0.5)):
        values = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
        assert abs(float(values.mean())) < 0.03 * spread
        assert float(values.std()) == pytest.approx(spread, rel=0.1)


def test_it_is_written_once(made: tuple[Shape, Path], tmp_path: Path) -> None:
    shape, path = made
    written = path.stat().st_mtime_ns
    assert random_model(path.parent, shape, path) == path
    assert path.stat().st_mtime_ns == written
    assert random_model(tmp_path, shape, path.parent / "tokenizer.gguf").read_bytes() == path.read_bytes()


def test_a_tokens_work_is_that_of_the_experts_it_takes(made: tuple[Shape, Path]) -> None:
    shape, path = made
    attention, router, expert = 2 * 256 * 256 + 2 * 64 * 256, 8 * 256, 3 * 256 * 512
    assert work(path).layer_macs == 2 * (attention + router + 2 * expert)
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[shape.type]]
    assert work(path).expert_bytes == 2 * 8 * expert * size // block
    assert work(path).weights(1) == work(path).bytes + work(path).expert_bytes / 4
    assert work(path).head_macs == np.int64(256) * FAMILIES[0].vocab
