"""mmproj files and folders that see: what a good one says, and that nothing in a bad one gets past a ``ModelError`` of one line."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.as_gguf import write_gguf
from tests.reference.as_mmproj import write_mmproj
from tests.reference.folders import write_safetensors
from tests.reference.transformers_vision import models

from quintet.backends.native.core.cpu import Cpu
from quintet.backends.native.core.vision import NativeEncoder
from quintet.errors import ModelError
from quintet.models.opening import find_vision, open_model, open_vision
from quintet.models.vision.mmproj import open_mmproj

FUZZ = int(os.environ.get("QUINTET_FUZZ", "300"))
TINY = models()["idefics3"]
V = "clip.vision."


def test_a_file_and_a_folder_say_the_same(tmp_path: Path) -> None:
    for name, tiny in models().items():
        file = open_vision(write_mmproj(tmp_path / f"mmproj-{name}.gguf", tiny), 96)
        folder = open_vision(tiny.write(tmp_path / name), 96)
        assert replace(file.spec, norm_eps=folder.spec.norm_eps) == folder.spec
        assert file.spec.norm_eps == pytest.approx(folder.spec.norm_eps)
        assert file.tensors.keys() == folder.tensors.keys()
        assert (file.spec.tokens, file.spec.longest_edge) == (tiny.tokens_of_tile, 4 * tiny.tile)
        assert len(open_model(tmp_path / name).spec.layers) == tiny.config["text_config"]["num_hidden_layers"]


def test_a_folder_says_what_its_processor_does(tmp_path: Path) -> None:
    """In a file of its own, or in that of all that a processor does."""
    folder = TINY.write(tmp_path)
    said = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "size": {"longest_edge": 180}}
    for name, document in (("preprocessor_config.json", said), ("processor_config.json", {"image_processor": said})):
        (folder / name).write_text(json.dumps(document))
        spec = open_vision(folder, 96).spec
        assert (spec.mean, spec.std, spec.longest_edge) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 180)
        (folder / name).unlink()


def test_of_two_files_of_processors_the_one_that_transformers_takes_counts(tmp_path: Path) -> None:
    """The part of the whole's, if it is there; published folders have a whole's without it."""
    folder = TINY.write(tmp_path)
    old, new = {"size": {"longest_edge": 120}}, {"size": {"longest_edge": 180}}
    (folder / "preprocessor_config.json").write_text(json.dumps(old))
    for whole, edge in ({"image_processor": new}, 180), ({"image_processor": None}, 120), ({"image_seq_len": 64, **new}, 120):
        (folder / "processor_config.json").write_text(json.dumps(whole))
        assert open_vision(folder, 96).spec.longest_edge == edge


PUBLISHED: dict[str, dict[str, Any]] = {
    "idefics3": {
        "do_convert_rgb": True,
        "do_image_splitting": True,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Idefics3ImageProcessor",
        "image_std": [0.5, 0.5, 0.5],
        "max_image_size": {"longest_edge": TINY.tile},
        "processor_class": "Idefics3Processor",
        "resample": 1,
        "rescale_factor": 0.00392156862745098,
        "size": {"longest_edge": 4 * TINY.tile},
    },
    "gemma3": {
        "do_convert_rgb": None,
        "do_normalize": True,
        "do_pan_and_scan": None,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Gemma3ImageProcessor",
        "image_seq_length": 256,
        "image_std": [0.5, 0.5, 0.5],
        "pan_and_scan_max_num_crops": None,
        "processor_class": "Gemma3Processor",
        "resample": 2,
        "rescale_factor": 0.00392156862745098,
        "size": {"height": models()["gemma3"].tile, "width": models()["gemma3"].tile},
    },
}
"""As SmolVLM's and Gemma 3's files are, but for the sizes."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_processor_as_it_is_published_says_what_none_says(name: str, tmp_path: Path) -> None:
    folder = models()[name].write(tmp_path)
    spec = open_vision(folder, 96).spec
    (folder / "preprocessor_config.json").write_text(json.dumps(PUBLISHED[name]))
    assert open_vision(folder, 96).spec == spec


@pytest.mark.parametrize(
    ("name", "said", "message"),
    [
        ("idefics3", {"do_image_splitting": False}, "do_image_splitting' must be true; others are not implemented, got false"),
        ("gemma3", {"do_pan_and_scan": True}, "do_pan_and_scan' must be false"),
        ("gemma3", {"do_normalize": False}, "do_normalize' must be true"),
        ("idefics3", {"do_rescale": False}, "do_rescale' must be true"),
        ("idefics3", {"do_resize": False}, "do_resize' must be true"),
        ("idefics3", {"rescale_factor": 1 / 127.5}, "rescale_factor' must be 1/255"),
        ("idefics3", {"resample": 3}, "resample' must be 1"),
        ("gemma3", {"resample": 3}, "resample' must be 2"),
        ("idefics3", {"max_image_size": {"longest_edge": 364}}, f"max_image_size.longest_edge' must be {TINY.tile}, .* got 364"),
        ("gemma3", {"size": {"height": 448, "width": 448}}, "size.height' must be"),
    ],
)
def test_a_processor_that_does_something_else_to_pixels_is_refused_by_name(
    name: str, said: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = models()[name].write(tmp_path)
    for file, document in (("preprocessor_config.json", said), ("processor_config.json", {"image_processor": said})):
        (folder / file).write_text(json.dumps(document))
        with pytest.raises(ModelError, match=f"{file}: .*{message}"):
            open_vision(folder, 96)
        (folder / file).unlink()


def test_an_encoder_is_found_beside_its_model_or_in_its_folder(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "model.gguf", TINY.text())
    assert find_vision(model) is None
    second, first = (write_mmproj(tmp_path / f"mmproj-{letter}.gguf", TINY) for letter in "ba")
    assert find_vision(model) == first != second
    assert find_vision(TINY.write(tmp_path / "folder")) == tmp_path / "folder"
    assert find_vision(TINY.text().write(tmp_path / "blind")) is None


BAD_KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "projector": ({"clip.projector_type": "qwen2vl_merger"}, "'clip.projector_type' must be one of the supported idefics3, gemma3"),
    "no projector": ({"clip.projector_type": None}, "'clip.projector_type' is missing"),
    "activation": ({"clip.use_gelu": False}, "'clip.use_gelu' asks for something that is not implemented"),
    "no activation": ({"clip.use_gelu": None}, "'clip.use_gelu' must be true"),
    "unknown": ({f"{V}window_size": 3}, "'clip.vision.window_size' asks for something that is not implemented, got 3"),
    "audio": ({"clip.has_audio_encoder": True}, "'clip.has_audio_encoder' asks for something"),
    "width": ({f"{V}projection_dim": 128}, "'clip.vision.projection_dim' must be 96, the width of the model's embedding, got 128"),
    "heads": ({f"{V}attention.head_count": 5}, "'clip.vision.attention.head_count' must divide the width 96, got 5"),
    "hidden": ({f"{V}embedding_length": 100}, "'clip.vision.embedding_length' must be a multiple of 32, got 100"),
    "scale": ({f"{V}projector.scale_factor": 3}, "'clip.vision.projector.scale_factor' must divide the 4 patches"),
    "patch": ({f"{V}patch_size": 61}, "'clip.vision.patch_size' must be at most the image's size 60"),
    "side": ({f"{V}patch_size": 1, f"{V}image_size": 129}, "'clip.vision.image_size' must be at most 128 patches of 1 pixels"),
    "no image": ({f"{V}image_size": None}, "'clip.vision.image_size' is missing"),
    "huge": ({f"{V}block_count": 100000}, "'clip.vision.block_count' must be an integer from 1 to 512"),
    "layers": ({f"{V}block_count": 4}, "tensor 'v.blk.3.ln1.weight' is missing; an image encoder of 4 layers needs it"),
    "few layers": ({f"{V}block_count": 2}, "tensor 'v.blk.2.attn_k.bias' is not part of an image encoder"),
    "ffn": ({f"{V}feed_forward_length": 137}, r"the shape of tensor 'v.blk.0.ffn_up.weight' must be \[137, 96\], got \[136, 96\]"),
    "epsilon": ({f"{V}attention.layer_norm_epsilon": -1.0}, "'clip.vision.attention.layer_norm_epsilon' must be a finite number above 0"),
    "mean": ({f"{V}image_mean": [0.5, 0.5]}, "'clip.vision.image_mean' must have 3 entries, got 2"),
    "no mean": ({f"{V}image_mean": None}, "'clip.vision.image_mean' is missing"),
    "not a number": ({f"{V}image_mean": [0.5, float("nan"), 0.5]}, "'clip.vision.image_mean' must be finite numbers"),
    "std": ({f"{V}image_std": [0.5, 0.0, 0.5]}, "'clip.vision.image_std' must be above 0.001 for each colour"),
}


@pytest.mark.parametrize("what", BAD_KEYS)
def test_a_key_that_is_wrong_is_named(what: str, tmp_path: Path) -> None:
    keys, message = BAD_KEYS[what]
    with pytest.raises(ModelError, match=message):
        open_mmproj(write_mmproj(tmp_path / "m.gguf", TINY, keys=keys), 96)


def test_a_model_is_no_mmproj_file_and_an_mmproj_file_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'general.architecture' must be clip in an mmproj file, got 'llama'"):
        open_mmproj(write_gguf(tmp_path / "model.gguf", TINY.text()), 96)
    with pytest.raises(ModelError, match="'general.architecture' must be one of the supported"):
        open_model(write_mmproj(tmp_path / "m.gguf", TINY))


BAD_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "activation": ({"vision_config": {"hidden_act": "gelu"}}, "'vision_config.hidden_act' must be gelu_pytorch_tanh"),
    "channels": ({"vision_config": {"num_channels": 4}}, "'vision_config.num_channels' must be 3, got 4"),
    "layers": ({"vision_config": {"num_hidden_layers": 9}}, "encoder.layers.3.layer_norm1.weight' is missing"),
    "scale": ({"scale_factor": 3}, "'vision_config.scale' must divide the 4 patches"),
    "patch": ({"vision_config": {"patch_size": "14"}}, "'vision_config.patch_size' must be an integer"),
}


@pytest.mark.parametrize("what", BAD_CONFIGS)
def test_a_folders_config_that_is_wrong_is_named(what: str, tmp_path: Path) -> None:
    changes, message = BAD_CONFIGS[what]
    folder = TINY.write(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        open_vision(folder, 96)


def test_tokens_of_gemmas_image_must_be_a_square_that_fits(tmp_path: Path) -> None:
    folder = models()["gemma3"].write(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for tokens in (15, 9, 0):
        (folder / "config.json").write_text(json.dumps({**config, "mm_tokens_per_image": tokens}))
        with pytest.raises(ModelError, match="'mm_tokens_per_image' must be"):
            open_vision(folder, 96)


def test_a_folders_tensor_that_does_not_belong_is_named(tmp_path: Path) -> None:
    folder = TINY.write(tmp_path)
    one = {"model.vision_model.odd": ("F32", (1,), b"abcd")}
    write_safetensors(folder / "model-00002.safetensors", one)
    (folder / "model.safetensors").rename(folder / "model-00001.safetensors")
    names = dict.fromkeys(TINY.shapes, "model-00001.safetensors") | {"model.vision_model.odd": "model-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(ModelError, match="tensor 'model.vision_model.odd' is not part of an image encoder"):
        open_vision(folder, 96)


def damaged(whole: bytes) -> Iterator[bytes]:
    """The file with some of its bytes changed, most of them before the tensors, or cut short."""
    for number in itertools.count():
        rng = random.Random(number)
        found = bytearray(whole)
        for _ in range(rng.randrange(1, 5)):
            found[rng.randrange(6000 if rng.random() < 0.9 else len(found))] = rng.choice((0, 1, 2, 32, 127, 128, 255, rng.randrange(256)))
        yield bytes(found[: rng.randrange(len(found))] if rng.random() < 0.1 else found)


def test_a_damaged_file_is_refused_in_one_line_or_computes_something(tmp_path: Path) -> None:
    """Whatever it says, no size of it gets as far as the encoder's memory unchecked."""
    whole = write_mmproj(tmp_path / "whole.gguf", TINY).read_bytes()
    path, refused = tmp_path / "mmproj.gguf", 0
    for content in itertools.islice(damaged(whole), FUZZ):
        path.write_bytes(content)
        try:
            file = open_mmproj(path, 96)
        except ModelError as error:
            refused += 1
            assert "\n" not in str(error)
            continue
        made = NativeEncoder(file.spec, Cpu(), "q8")
        made.take_weights(file.tensors, lambda _: None)
        made.begin(np.zeros(3 * file.spec.image**2, np.uint8))
        assert made.advance(1 << 40)
    assert refused > FUZZ // 4
