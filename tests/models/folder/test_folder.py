"""Hugging Face folders: what a good one means, and that nothing in a bad one gets past a ``ModelError`` of one line that names it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from tests.reference.folders import UNWRITTEN, Raw, raw, write_folder, write_safetensors
from tests.reference.tiny_model import FAMILIES, TinySpec, write_tiny

from quintet.errors import ModelError
from quintet.models.files import Map
from quintet.models.folder.kinds import KINDS
from quintet.models.folder.safetensors import read_tensors
from quintet.models.folder.tokenizer import build_folder_tokenizer
from quintet.models.opening import open_model
from quintet.models.spec import ModelSpec

PLAIN = TinySpec("plain", types=(Type.BF16,), layers=1)
FLOATS = [
    replace(spec, types=(Type.BF16,))
    for spec in FAMILIES
    if not spec.freq_factors and spec.architecture not in UNWRITTEN  # a config.json has no frequency factors, but a rule for them
]


def folder_of(tmp_path: Path, spec: TinySpec = PLAIN, **changes: Any) -> Path:
    return write_folder(tmp_path / "model", write_tiny(tmp_path / "tiny.gguf", spec), changes=changes)


def refused(folder: Path) -> str:
    """The error of opening ``folder``, one line."""
    with pytest.raises(ModelError) as error:
        open_model(folder)
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 600
    return text


def rewrite(folder: Path, changed: Mapping[str, Raw | None]) -> Path:
    """Put tensors over a folder's; ``None`` takes one out."""
    path = folder / "model.safetensors"
    found = {name: (one.type, one.shape, bytes(one.data)) for name, one in read_tensors(path, Map(path, 8), codes=True).items()}
    write_safetensors(path, {name: one for name, one in {**found, **changed}.items() if one is not None})
    return folder


# --- what config.json means


@pytest.mark.parametrize("spec", FLOATS, ids=lambda spec: spec.name)
def test_a_folder_says_what_its_gguf_file_says(spec: TinySpec, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", spec)
    theirs = open_model(path).spec
    unwindowed = {"sliding_window": None} if spec.architecture == "phi3" else None
    ours = open_model(write_folder(tmp_path / "model", path, changes=unwindowed)).spec
    assert ours == replace(theirs, interleaved=False, name="")


def spec_of(tmp_path: Path, spec: TinySpec, **changes: Any) -> ModelSpec:
    return open_model(folder_of(tmp_path, spec, **changes)).spec


def windows(spec: ModelSpec) -> list[int]:
    return [layer.window for layer in spec.layers]


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({"model_type": "mistral", "sliding_window": 9}, [9, 9, 9]),
        ({"model_type": "mistral", "sliding_window": None}, [0, 0, 0]),
        ({"model_type": "mistral", "sliding_window": 4096}, [0, 0, 0]),  # nothing is ever out of it
    ],
)
def test_mistrals_window_is_one_of_all_layers(changes: dict[str, Any], want: list[int], tmp_path: Path) -> None:
    assert windows(spec_of(tmp_path, replace(PLAIN, layers=3), **changes)) == want


QWEN = TinySpec("qwen", "qwen2", types=(Type.BF16,), layers=3, hidden=96, heads=3, kv_heads=1)


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({"sliding_window": 9}, [0, 0, 0]),
        ({"sliding_window": 9, "use_sliding_window": False, "max_window_layers": 1}, [0, 0, 0]),
        ({"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1}, [0, 9, 9]),
        ({"sliding_window": 9, "use_sliding_window": True}, [0, 0, 0]),
        (
            {"sliding_window": 9, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            [9, 0, 9],
        ),
    ],
)
def test_qwens_window_is_asked_for_and_of_late_layers(changes: dict[str, Any], want: list[int], tmp_path: Path) -> None:
    assert windows(spec_of(tmp_path, QWEN, **changes)) == want


def test_listed_layers_have_windows_and_their_own_rotation(tmp_path: Path) -> None:
    """As older versions of transformers write Gemma 3, and as newer ones do."""
    gemma = next(replace(spec, types=(Type.BF16,)) for spec in FAMILIES if spec.name == "gemma3")
    types = [("sliding" if i % 3 else "full") + "_attention" for i in range(gemma.layers)]
    local = {"rope_type": "default", "rope_theta": 777.0}
    ropes = {"full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}, "sliding_attention": local}
    new = {"rope_parameters": ropes, "rope_theta": None, "rope_scaling": None, "rope_local_base_freq": None}
    spec = spec_of(tmp_path, gemma, layer_types=types, **new)
    assert windows(spec) == [0 if type_ == "full_attention" else 21 for type_ in types]
    assert [layer.rope for layer in spec.layers] == [int(type_ != "full_attention") for type_ in types]
    assert [(rope.base, rope.scaling, rope.factor) for rope in spec.ropes] == [(5e5, "linear", 4.0), (777.0, "none", 1.0)]


@pytest.mark.parametrize("name", ["gemma3", "olmo3"])
def test_layers_with_a_window_as_long_as_the_context_rotate_by_themselves_still(name: str, tmp_path: Path) -> None:
    family = next(replace(spec, types=(Type.BF16,)) for spec in FAMILIES if spec.name == name)
    want = spec_of(tmp_path, family)
    assert len(want.ropes) == 2
    for size in (family.context, 2 * family.context):
        spec = spec_of(tmp_path, family, sliding_window=size)
        assert spec.ropes == want.ropes
        assert [layer.rope for layer in spec.layers] == [layer.rope for layer in want.layers]


def test_a_scale_of_its_own_is_heeded(tmp_path: Path) -> None:
    gemma = next(replace(spec, types=(Type.BF16,)) for spec in FAMILIES if spec.name == "gemma2")
    assert {layer.attn_scale for layer in spec_of(tmp_path, gemma, query_pre_attn_scalar=144).layers} == {144**-0.5}


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({}, [4096, 0, 4096]),
        ({"sliding_window": 16384}, [0, 0, 0]),
        ({"layer_types": ["full_attention"] * 3}, [0, 0, 0]),
    ],
)
def test_a_gemma_2_that_does_not_say_them_has_its_familys_caps_and_window_and_none_where_it_says_so(
    changes: dict[str, Any], want: list[int], tmp_path: Path
) -> None:
    gemma = next(replace(spec, types=(Type.BF16,), context=8192, metadata={}) for spec in FAMILIES if spec.name == "gemma2")
    folder = folder_of(tmp_path, gemma, **changes)
    spec = open_model(folder).spec
    assert (windows(spec), spec.layers[0].attn_cap, spec.logit_cap) == (want, 50.0, 30.0)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attn_logit_softcapping": None, "final_logit_softcapping": None}))
    spec = open_model(folder).spec
    assert (windows(spec), spec.layers[0].attn_cap, spec.logit_cap) == (want, 0.0, 0.0)


def test_listed_layers_are_not_rotated(tmp_path: Path) -> None:
    smol = next(replace(spec, types=(Type.BF16,)) for spec in FAMILIES if spec.name == "smollm3")
    assert [layer.rope for layer in spec_of(tmp_path, smol, no_rope_layers=[1, 0, 1, 1, 0]).layers] == [0, -1, 0, 0, -1]
    assert [layer.rope for layer in spec_of(tmp_path, smol, no_rope_layer_interval=2).layers] == [0, -1, 0, -1, 0]


def test_smollm3s_windows_are_those_that_it_lists_asked_for_or_not_and_else_those_of_layers_without_a_rotation(tmp_path: Path) -> None:
    smol = next(replace(spec, types=(Type.BF16,)) for spec in FAMILIES if spec.name == "smollm3")
    types = ["sliding_attention"] * 2 + ["full_attention"] * 3
    for listed, asked, want in (types, False, [9, 9, 0, 0, 0]), (types, True, [9, 9, 0, 0, 0]), (None, True, [0, 0, 0, 9, 0]):
        assert windows(spec_of(tmp_path, smol, layer_types=listed, use_sliding_window=asked, sliding_window=9)) == want
    assert "'sliding_window' is missing" in refused(folder_of(tmp_path, smol, layer_types=types))


def test_experts_weights_sum_to_1_where_the_file_says_so(tmp_path: Path) -> None:
    experts = next(replace(spec, types=(Type.BF16,)) for spec in FAMILIES if spec.name == "olmoe")
    for flag in (True, False):
        assert {layer.experts.normalise for layer in spec_of(tmp_path, experts, norm_topk_prob=flag).layers if layer.experts} == {flag}


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def test_llama_3s_rotation_is_stretched_by_the_length_of_its_waves(tmp_path: Path) -> None:
    """Worked out by hand: below 64 / 4 tokens a wave stays, beyond 64 it is 8 times as long, in between it goes from one to the other."""
    rope = spec_of(tmp_path, PLAIN, rope_scaling=LLAMA3, rope_theta=100.0).ropes[0]
    waves = [2 * math.pi * 100 ** (2 * i / PLAIN.head_dim) for i in range(PLAIN.head_dim // 2)]
    share = [min(1.0, max(0.0, (64 / wave - 1) / 3)) for wave in waves]
    np.testing.assert_allclose(rope.freq_factors, [1 / (one + (1 - one) / 8) for one in share], rtol=1e-12)
    assert rope.freq_factors[0] == 1 and rope.freq_factors[-1] == 8


@pytest.mark.parametrize(
    ("extra", "mscale"),
    [
        ({}, 1.0),
        ({"attention_factor": 1.5}, 1.5 / (1 + 0.1 * math.log(4))),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1 / (1 + 0.1 * math.log(4))),
    ],
)
def test_yarns_factor_on_the_rotated_values(extra: dict[str, float], mscale: float, tmp_path: Path) -> None:
    rope = spec_of(tmp_path, QWEN, rope_scaling={"type": "yarn", "factor": 4.0, **extra}).ropes[0]
    assert (rope.scaling, rope.factor, rope.original_context) == ("yarn", 4.0, QWEN.context)
    assert rope.attn_factor == pytest.approx(mscale)


def test_longrope_takes_its_factor_from_the_two_contexts(tmp_path: Path) -> None:
    phi = next(replace(spec, types=(Type.BF16,)) for spec in FAMILIES if spec.name == "phi4-mini")
    factors = {"type": "su", "long_factor": [2.0] * 24, "short_factor": [1.5] * 24}
    rope = spec_of(tmp_path, phi, rope_scaling=factors, original_max_position_embeddings=512).ropes[0]
    assert (rope.long_factors, rope.freq_factors) == ((2.0,) * 24, (1.5,) * 24)
    assert rope.attn_factor == pytest.approx(math.sqrt(1 + math.log(2048 / 512) / math.log(512)))


def test_the_language_model_of_one_that_sees_images(tmp_path: Path) -> None:
    gemma = next(replace(spec, types=(Type.BF16,)) for spec in FAMILIES if spec.name == "gemma3")
    folder = folder_of(tmp_path, gemma)
    want = open_model(folder)
    held = {name: one.data.tobytes() for name, one in want.tensors.items()}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": config, "vision_config": {"hidden_size": 9}}))
    path = folder / "model.safetensors"
    found = {name: (one.type, one.shape, bytes(one.data)) for name, one in read_tensors(path, Map(path, 8), codes=True).items()}
    for prefix, eye in (("language_model.model.", "vision_tower.x.weight"), ("model.language_model.", "model.vision_tower.x.weight")):
        renamed = {prefix + name.removeprefix("model."): one for name, one in found.items()}
        write_safetensors(path, {**renamed, eye: raw(np.zeros((2, 3), np.float32))})
        got = open_model(folder)
        assert got.spec == want.spec
        assert {name: one.data.tobytes() for name, one in got.tensors.items()} == held


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "mamba"}, f"'model_type' must be one of the supported {', '.join(KINDS)}, got 'mamba'"),
        ({"model_type": None}, "'model_type' must be one of the supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "weights quantised with 'gptq' are not read: use the repository"),
        ({"quantization_config": {"quant_method": "fp8"}}, "weights quantised with 'fp8' are not read"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "weights quantised with 'compressed-tensors' are not read"),
        ({"num_hidden_layers": "2"}, "'num_hidden_layers' must be an integer from 1 to 1024, got '2'"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' must be an integer from 1 to 1024"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"head_dim": None, "num_attention_heads": 7}, "'num_attention_heads' must divide the hidden_size 160, got 7"),
        ({"num_key_value_heads": 2}, "'num_key_value_heads' must divide the 5 attention heads, got 2"),
        ({"rms_norm_eps": float("1e400")}, "must be JSON ('Infinity is not a number in JSON')"),
        ({"hidden_act": "relu"}, "'hidden_act' must be silu or swish in this family; others are not implemented, got 'relu'"),
        ({"mlp_bias": True}, "'mlp_bias' asks for something that is not implemented, got true"),
        ({"sliding_window": 7}, "'sliding_window' asks for something that is not implemented, got 7"),
        ({"new_idea": 0.5}, "'new_idea' asks for something that is not implemented, got 0.5"),
        ({"partial_rotary_factor": 0.5}, "'rope_parameters.partial_rotary_factor' must be 1 in this family, got 0.5"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'rope_scaling.rope_type' must be one of default, linear"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'rope_scaling.factor' is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "'rope_scaling.factor' must be a finite number above 0, got -1"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2, "other": 1}}, "'rope_scaling.other' asks for something"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "must be above the low_freq_factor 1.0, got 1.0"),
        ({"rope_scaling": [2]}, "'rope_scaling' must be an object, got [2]"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "truncate": False}}, "'rope_scaling.truncate' must be true"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 0.5}}, "'rope_scaling.factor' must be at least 1 for yarn, got 0.5"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' must be true or false, got 'yes'"),
        (
            {"tie_word_embeddings": True, "vocab_size": 276},
            "'vocab_size' must be 277, the number of rows of tensor 'model.embed_tokens.weight', got 276",
        ),
        ({"num_hidden_layers": 2}, "tensor 'model.layers.1.input_layernorm.weight' is missing"),
        ({"intermediate_size": 320}, "the shape of tensor 'model.layers.0.mlp.gate_proj.weight' must be [320, 160], got [352, 160]"),
        ({"model_type": "qwen2"}, "tensor 'model.layers.0.self_attn.q_proj.bias' is missing"),
        ({"model_type": "qwen3"}, "tensor 'model.layers.0.self_attn.q_norm.weight' is missing"),
    ],
)
def test_what_config_json_may_not_say(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    text = refused(folder_of(tmp_path, **changes))
    assert said in text
    assert "config.json: " in text


def test_config_json_must_be_one_object_with_no_key_twice(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    for content, said in (
        ("[]", "must hold an object"),
        ("{", "must be JSON"),
        ('{"a": 1, "a": 2}', "key 'a' is there twice"),
        ('{"a": ' + "[" * 100000, "is nested too deep"),
        (" " * (1 << 24) + "{}", "must be at most 16777216 bytes"),
        ('{"a": ' + "9" * 5000 + "}", "must be JSON"),
        ("\udcff", "must be JSON"),
    ):
        (folder / "config.json").write_text(content, errors="surrogateescape")
        assert said in refused(folder)


# --- tensors


def test_tensors_that_do_not_belong_to_the_model_are_refused_by_name(tmp_path: Path) -> None:
    folder, vector = folder_of(tmp_path), raw(np.ones(160, np.float32))
    assert "tensor 'model.layers.0.extra.weight' is not part of such a model" in refused(
        rewrite(folder, {"model.layers.0.extra.weight": vector})
    )
    rewrite(folder, {"model.layers.0.extra.weight": None, "model.layers.0.self_attn.rotary_emb.inv_freq": vector})
    open_model(folder)  # which old files have
    rewrite(folder, {"model.layers.0.self_attn.q_norm.weight": vector})
    assert "tensor 'model.layers.0.self_attn.q_norm.weight' is not part of a llama model" in refused(folder)


def test_experts_are_all_there_and_alike(tmp_path: Path) -> None:
    mixtral = next(replace(spec, types=(Type.F32,)) for spec in FAMILIES if spec.name == "mixtral")
    name = "model.layers.1.block_sparse_moe.experts.{}.w1.weight"
    folder = folder_of(tmp_path, mixtral)
    assert f"tensor '{name.format(4)}' is missing; the model has 6 experts" in refused(rewrite(folder, {name.format(4): None}))
    folder = folder_of(tmp_path, mixtral)
    rewrite(folder, {name.format(4): raw(np.ones((95, 96), np.float32))})
    assert f"tensor '{name.format(4)}' must be F32 [96, 96] as" in refused(folder)
    folder = folder_of(tmp_path, mixtral)
    assert "'model.layers.0.block_sparse_moe.experts.6.w1.weight' is not part" in refused(
        rewrite(folder, {name.format(6).replace(".1.", ".0.", 1): raw(np.ones((96, 96), np.float32))})
    )
    assert "the shape of tensor 'model.layers.0.block_sparse_moe.experts.0.w1.weight' must be [320, 96], got [96, 96]" in refused(
        folder_of(tmp_path, mixtral, intermediate_size=320)
    )


def test_experts_in_one_tensor_have_an_even_number_of_rows(tmp_path: Path) -> None:
    granite = next(replace(spec, types=(Type.BF16,)) for spec in FAMILIES if spec.name == "granitemoe")
    name = "model.layers.0.block_sparse_moe.input_linear.weight"
    folder = rewrite(folder_of(tmp_path, granite), {name: raw(np.ones((5, 191, 160), np.float32))})
    assert f"tensor '{name}' must have an even number of rows" in refused(folder)
    folder = rewrite(folder, {name: raw(np.ones((5, 190, 160), np.float32))})
    assert f"the shape of tensor '{name}' must be [5, 192, 160], got [5, 190, 160]" in refused(folder)


# --- files


def test_what_a_folder_must_have(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    weights = (folder / "model.safetensors").rename(folder / "other.safetensors")
    assert "has other.safetensors, but neither model.safetensors nor model.safetensors.index.json" in refused(folder)
    weights.unlink()
    assert "has no weights: neither" in refused(folder)
    (folder / "adapter_model.safetensors").touch()
    assert "adapter_model.safetensors is an adapter, not a model" in refused(folder)
    (folder / "pytorch_model-00001-of-00002.bin").touch()
    assert "has its weights in pytorch_model-00001-of-00002.bin: pickles are not opened" in refused(folder)
    (folder / "config.json").unlink()
    assert "adapter_model.safetensors is an adapter, not a model" in refused(folder), "PEFT writes none beside it"
    (folder / "adapter_model.safetensors").unlink()
    assert "has no config.json" in refused(folder)
    (folder / "mmproj-a.gguf").touch()
    assert refused(folder).endswith("is not the folder of a model.")
    (folder / "a.gguf").touch()
    assert refused(folder).endswith(f"is not the folder of a model; give the file, such as {folder / 'a.gguf'}.")


def test_a_pointer_of_git_lfs_is_told_from_the_file_that_it_stands_for(tmp_path: Path) -> None:
    """Git leaves it there where it fetched no large files; "must be JSON" and "damaged" would have somebody look in the wrong place."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4" * 64 + b"\nsize 134515008\n"
    folder = folder_of(tmp_path, PLAIN)
    for name, open_it in (("model.safetensors", open_model), ("tokenizer.json", build_folder_tokenizer)):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(pointer)
        with pytest.raises(ModelError, match=f"^{name}: is only a pointer of Git LFS to the file: fetch it with git lfs pull"):
            open_it(folder)
        (folder / name).write_bytes(whole)
    (tmp_path / "a.gguf").write_bytes(pointer)
    with pytest.raises(ModelError, match="^a.gguf: is only a pointer of Git LFS"):
        open_model(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "sub/a.safetensors", "config.json", "", 5, ".safetensors/", "a\n.safetensors"]
)
def test_an_index_names_files_of_its_folder_only(name: object, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    index = {"weight_map": {"model.norm.weight": name}}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "the file of tensor 'model.norm.weight' must be a .safetensors file of the folder" in refused(folder)


def test_one_file_of_weights_comes_before_an_index_of_several(tmp_path: Path) -> None:
    """As in transformers, of which an earlier save may have left the others."""
    old, new = (write_tiny(tmp_path / f"{seed}.gguf", replace(PLAIN, seed=seed)) for seed in (1, 2))
    folder, fresh = write_folder(tmp_path / "model", old, shards=2), write_folder(tmp_path / "new", new)
    (folder / "model.safetensors").write_bytes((fresh / "model.safetensors").read_bytes())
    ours, theirs, before = (bytes(open_model(path).tensors["embed"].data) for path in (folder, fresh, old))
    assert ours == theirs != before


def test_a_shard_that_is_missing_or_repeats_a_tensor_is_named(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", PLAIN)
    folder = write_folder(tmp_path / "model", path, shards=2)
    whole = write_folder(tmp_path / "whole", path) / "model.safetensors"
    open_model(folder)
    second = folder / "model-00002-of-00002.safetensors"
    second.write_bytes(whole.read_bytes())
    assert "is in model-00001-of-00002.safetensors too" in refused(folder)
    second.unlink()
    assert "model-00002-of-00002.safetensors: cannot be read" in refused(folder)
    second.symlink_to(whole)  # as in a hub's cache
    assert "is in model-00001-of-00002.safetensors too" in refused(folder)
