"""Every key of a folder's encoder and of its processor is understood, or known to say nothing; published files have no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.reference.transformers_vision import models

from quintet.errors import ModelError
from quintet.models.opening import open_vision

SAVED: dict[str, Any] = {
    **{"attention_dropout": 0.0, "initializer_range": 0.02, "num_channels": 3, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-06},
    **{"_name_or_path": "", "architectures": None, "chunk_size_feed_forward": 0, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
    **{"is_encoder_decoder": False, "output_attentions": False, "output_hidden_states": False, "problem_type": None, "return_dict": True},
}
"""As transformers 5 has a part of a file."""
OLD: dict[str, Any] = {
    **{
        "add_cross_attention": False,
        "bad_words_ids": None,
        "cross_attention_hidden_size": None,
        "diversity_penalty": 0.0,
        "do_sample": False,
    },
    **{"early_stopping": False, "encoder_no_repeat_ngram_size": 0, "finetuning_task": None, "is_decoder": False, "length_penalty": 1.0},
    **{"max_length": 20, "min_length": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1, "num_beams": 1, "num_return_sequences": 1},
    **{"output_scores": False, "prefix": None, "pruned_heads": {}, "remove_invalid_values": False, "repetition_penalty": 1.0},
    **{
        "return_dict_in_generate": False,
        "temperature": 1.0,
        "tf_legacy_loss": False,
        "tie_encoder_decoder": False,
        "top_k": 50,
        "top_p": 1.0,
    },
    **{"tie_word_embeddings": True, "torch_dtype": None, "torchscript": False, "typical_p": 1.0, "use_bfloat16": False},
}
"""As version 4 could have it."""
SMOLVLM: dict[str, Any] = {
    **{"max_image_size": {"longest_edge": 512}, "size": {"longest_edge": 2048}, "tie_word_embeddings": False, "use_base_siglip": False},
    **{"model_type": "smolvlm_vision", "torch_dtype": "bfloat16"},
}
ENCODERS = [
    *(
        ("idefics3", keys)
        for keys in ({"model_type": "idefics3"}, {**SMOLVLM, "use_base_siglip": True}, {**SMOLVLM, **SAVED}, {**SAVED, **OLD})
    ),
    *(
        ("gemma3", {"model_type": "siglip_vision_model", **keys})
        for keys in ({}, {"vision_use_head": False}, {**SAVED, "vision_use_head": True})
    ),
    ("gemma3", {**OLD, "dtype": "bfloat16", "_attn_implementation_autoset": True, "num_image_tokens": 256, "projection_dim": 2048}),
]
FAST: dict[str, Any] = {
    **{"crop_size": None, "data_format": "channels_first", "default_to_square": True, "device": None, "disable_grouping": None},
    **{"do_center_crop": None, "do_convert_rgb": None, "input_data_format": None, "return_tensors": None},
}
VIDEO: dict[str, Any] = {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 512}}
PROCESSORS: list[tuple[str, dict[str, Any]]] = [
    ("idefics3", {"image_processor_type": "SmolVLMImageProcessor", "processor_class": "SmolVLMProcessor", "video_sampling": VIDEO}),
    (
        "idefics3",
        {**FAST, "do_pad": True, "pad_size": None, "return_row_col_info": False, "do_center_crop": False, "_processor_class": "A"},
    ),
    ("idefics3", {"size": {"longest_edge": 240, "shortest_edge": 378}}),
    ("gemma3", {**FAST, "image_processor_type": "Gemma3ImageProcessorFast", "image_seq_length": 256, "do_pan_and_scan": None}),
    (
        "gemma3",
        {
            **{"do_pan_and_scan": False, "pan_and_scan_max_num_crops": 4, "pan_and_scan_min_crop_size": 256},
            "pan_and_scan_min_ratio_to_activate": 1.2,
        },
    ),
]


def opened(folder: Path, name: str) -> None:
    open_vision(folder, models()[name].config["text_config"]["hidden_size"])


def configured(within: Path, name: str, keys: dict[str, Any]) -> Path:
    """A model whose encoder's part of config.json has ``keys`` beside its own."""
    folder = models()[name].write(within)
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"] |= keys
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("name", "keys"), ENCODERS)
def test_an_encoders_published_configuration_is_understood(name: str, keys: dict[str, Any], tmp_path: Path) -> None:
    opened(configured(tmp_path, name, keys), name)


@pytest.mark.parametrize(("name", "keys"), PROCESSORS)
def test_a_published_processor_is_understood(name: str, keys: dict[str, Any], tmp_path: Path) -> None:
    folder = models()[name].write(tmp_path)
    (folder / "preprocessor_config.json").write_text(json.dumps(keys))
    opened(folder, name)


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize(("key", "value"), [("qk_norm", True), ("rope_theta", 10000.0), ("is_decoder", 1), ("unheard_of", False)])
def test_a_key_of_an_encoder_that_is_not_understood_is_named(name: str, key: str, value: object, tmp_path: Path) -> None:
    folder = configured(tmp_path, name, {key: value})
    with pytest.raises(ModelError, match=f"^config.json: 'vision_config.{key}' asks for something that is not implemented, got "):
        opened(folder, name)


@pytest.mark.parametrize(
    ("name", "keys", "named"),
    [
        ("idefics3", {"do_center_crop": True, "crop_size": {"height": 30, "width": 30}}, "do_center_crop"),
        ("gemma3", {"do_sharpen": True}, "do_sharpen"),
        ("idefics3", {"size": {"height": 30, "width": 30}}, "size.height"),
        ("idefics3", {"max_image_size": {"longest_edge": 60, "height": 60}}, "max_image_size.height"),
        ("gemma3", {"size": {"longest_edge": 2048}}, "size.longest_edge"),
    ],
)
def test_a_key_of_a_processor_that_is_not_understood_is_named(name: str, keys: dict[str, Any], named: str, tmp_path: Path) -> None:
    folder = models()[name].write(tmp_path)
    for file, document in (("preprocessor_config.json", keys), ("processor_config.json", {"image_processor": keys})):
        (folder / file).write_text(json.dumps(document))
        with pytest.raises(ModelError, match=f"^{file}: '(image_processor.)?{named}' asks for something that is not implemented, got "):
            opened(folder, name)
