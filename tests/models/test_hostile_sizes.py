"""Sizes in model files that divide by zero, or take more memory than the file has bytes: refused in one line."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.models.test_tokenizer import tiny

from quintet.errors import ModelError
from quintet.models import special
from quintet.models.gguf import open_model
from quintet.models.opening import open_vision
from quintet.models.vocabulary import TokenType


@pytest.mark.parametrize(("family", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_more_heads_than_the_width_has_places_are_refused_where_scores_are_scaled_by_it(family: str, layers: int, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(path := tmp_path / "m.gguf", family)
    for add, value in (
        (writer.add_context_length, 128),
        (writer.add_embedding_length, 32),
        (writer.add_feed_forward_length, 32),
        (writer.add_block_count, layers),
        (writer.add_head_count, 64),
        (writer.add_head_count_kv, 64),
        (writer.add_key_length, 16),
        (writer.add_value_length, 16),
    ):
        add(value)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=rf"'{family}.attention.head_count' must be at most the width 32, got 64"):
        open_model(path)


def test_a_patch_that_is_larger_than_the_image_is_refused(tmp_path: Path) -> None:
    head = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": {"image_size": 16, "patch_size": 32}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="must be the square of a divisor of the 0 patches"):
        open_vision(tmp_path, 2304)


def test_special_texts_have_a_bound_in_all(tmp_path: Path) -> None:
    """The finder of some takes two hundred times their size: 3 GB for a file of 16 MB."""
    most = special.MAX_CHARACTERS // special.MAX_LENGTH
    long = [f"{number:0{special.MAX_LENGTH}}" for number in range(most + 1)]
    with pytest.raises(ModelError, match=rf"special tokens of over {special.MAX_CHARACTERS} characters in all, got {(most + 1) * 256}"):
        tiny(tmp_path, long, [int(TokenType.CONTROL)] * len(long))
