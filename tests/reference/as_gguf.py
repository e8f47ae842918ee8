"""The GGUF file of a tiny transformers model: names, order of rows and keys as llama.cpp's converters write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from tests.reference.tiny_model import TinySpec, add_tokenizer
from tests.reference.transformers_tiny import TinyModel

F32 = npt.NDArray[np.float32]

ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3", "granite": "granite", "granitemoe": "granitemoe",
    "granitemoeshared": "granitemoe", "olmo2": "olmo2", "olmo3": "olmo2", "olmoe": "olmoe", "smollm3": "smollm3",
    "gpt_oss": "gpt-oss", "ministral3": "mistral3", "starcoder2": "starcoder2", "seed_oss": "seed_oss",
}  # fmt: skip
"""``model_type`` of a config.json -> GGUF's architecture."""

INTERLEAVED = ("llama", "mistral3", "granite", "granitemoe", "smollm3")
"""Architectures whose files have the two numbers of a rotated pair side by side, where transformers has them half a head apart."""

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.router.layer": "ffn_gate_inp",
    "block_sparse_moe.input_linear": "ffn_{}_exps", "block_sparse_moe.output_linear": "ffn_down_exps",
    "shared_mlp.input_linear": "ffn_{}_shexp", "shared_mlp.output_linear": "ffn_down_shexp",
    "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "mlp.router": "ffn_gate_inp",
    "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps",
}  # fmt: skip
"""Names of modules, those of a layer without its prefix, those of an expert without both; ``{}``: gate and up, one after the other."""

AROUND = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm"}
AROUND |= {"post_feedforward_layernorm": "post_ffw_norm"}
"""The same of models with norms after attention and feed-forward part, and of two where the first one has only the name."""

KEYS = {
    "num_hidden_layers": "block_count", "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length",
    "vocab_size": "vocab_size", "max_position_embeddings": "context_length", "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "norm_epsilon": "attention.layer_norm_epsilon",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping",
    "attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale", "num_local_experts": "expert_count", "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
}  # fmt: skip
"""What is said in one word on both sides, where a config says it."""

FLOATS = ("epsilon", "softcapping", "scale")
"""Ends of the keys whose values are floats even if they look like integers."""


def has_file(tiny: TinyModel) -> bool:
    """Whether a GGUF file can say all that the config does: llama.cpp's llama has no windows."""
    return not (tiny.config.get("sliding_window") and ARCHITECTURES[tiny.config["model_type"]] == "llama")


def write_gguf(path: Path, tiny: TinyModel, kind: Type = Type.F32) -> Path:
    """Write the model with matrices of type ``kind``, and return ``path``."""
    architecture = ARCHITECTURES[tiny.config["model_type"]]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")  # llama.cpp takes a name that tells of Phi 3 for a vocabulary of its
    for key, value in keys(tiny.config).items():
        put = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}[type(value)]
        put(f"{architecture}.{key}", value)  # type: ignore[operator]
    add_tokenizer(writer, TinySpec(tiny.name, architecture, vocab=tiny.config["vocab_size"]))
    for name, values in tensors(tiny):
        matrix = values.ndim > 1 and name.endswith("weight") and "ffn_gate_inp" not in name
        used = kind if matrix else Type.F32
        writer.add_tensor(name, gguf.quants.quantize(values, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def keys(config: dict[str, Any]) -> dict[str, Any]:
    """The architecture's own keys."""
    found: dict[str, Any] = {gguf_name: config[name] for name, gguf_name in KEYS.items() if config.get(name) is not None}
    found = {key: float(value) if key.endswith(FLOATS) else value for key, value in found.items()}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if ARCHITECTURES[config["model_type"]] == "llama":
        found.pop("attention.sliding_window", None)
    if config["model_type"] == "olmo3":
        found["attention.sliding_window_pattern"] = [type_ == "sliding_attention" for type_ in config["layer_types"]]
    if config["model_type"] == "gpt_oss":
        found["expert_feed_forward_length"] = config["intermediate_size"]
    if config.get("head_dim"):
        found |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    return found | _rope_keys(config, config["rope_parameters"], head_dim)


def _rope_keys(config: dict[str, Any], rope: dict[str, Any], head_dim: int) -> dict[str, int | float | str]:
    rope = rope.get("full_attention", rope)  # the others' is the family's
    found: dict[str, int | float | str] = {"rope.freq_base": float(rope["rope_theta"])}
    found["rope.dimension_count"] = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    kind, original = rope["rope_type"], int(rope.get("original_max_position_embeddings", 0))
    if kind in ("linear", "yarn", "longrope"):
        found["rope.scaling.type"] = kind
    if kind in ("linear", "yarn"):
        found["rope.scaling.factor"] = float(rope["factor"])
    for name, key in (("mscale_all_dim", "rope.scaling.yarn_log_multiplier"), ("llama_4_scaling_beta", "attention.temperature_scale")):
        if name in rope:
            found[key] = float(rope[name])
    if kind in ("yarn", "longrope"):
        found["rope.scaling.original_context_length"] = original
    if kind == "longrope":
        found["rope.scaling.attn_factor"] = float(np.sqrt(1 + np.log(config["max_position_embeddings"] / original) / np.log(original)))
    return found


def tensors(tiny: TinyModel) -> Iterator[tuple[str, F32]]:
    """Tensors by GGUF's names, experts' as one [E, rows, columns]."""
    architecture = ARCHITECTURES[tiny.config["model_type"]]
    names = NAMES | AROUND if architecture in ("gemma2", "gemma3", "olmo2", "gpt-oss", "seed_oss") else NAMES
    experts: dict[str, list[F32]] = {}
    drawn = tiny.tensors()
    for name in sorted(drawn, key=_numbered):
        values = drawn[name]
        module, _, kind = name.rpartition(".")
        found = re.fullmatch(r"model\.layers\.(\d+)\.(?:.*\.experts\.(\d+)\.)?(.*)", module)
        layer, expert, module = found.groups() if found else (None, None, module)
        if kind not in ("weight", "bias"):
            yield from _named_otherwise(f"blk.{layer}.", kind, values)
            continue
        target = f"{names[module]}.{kind}" if layer is None else f"blk.{layer}.{names[module]}.{kind}"
        if expert is not None:
            experts.setdefault(target, []).append(values)
        elif "{}" in target:
            for part, half in zip(("gate", "up"), np.split(values, 2, axis=-2), strict=True):
                yield target.format(part), np.ascontiguousarray(half)
        else:
            yield target, _converted(target, values, tiny.config, architecture)
    for target, matrices in experts.items():
        yield target, np.stack(matrices)
    yield from _rope_tensors(tiny.config["rope_parameters"], tiny.config)


def _named_otherwise(prefix: str, kind: str, values: F32) -> Iterator[tuple[str, F32]]:
    """gpt-oss: experts' matrices [E, columns, rows], those of gate and up row by row, and the sinks."""
    if kind == "sinks":
        yield f"{prefix}attn_sinks.weight", values
        return
    matrix, suffix = kind.removesuffix("_bias"), "bias" if kind.endswith("_bias") else "weight"
    rows = values if suffix == "bias" else values.swapaxes(-1, -2)
    parts = {"down": rows} if matrix == "down_proj" else {"gate": rows[:, ::2], "up": rows[:, 1::2]}
    for part, own in parts.items():
        yield f"{prefix}ffn_{part}_exps.{suffix}", np.ascontiguousarray(own)


def _numbered(name: str) -> list[int | str]:
    """The order of layers and of experts."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _converted(name: str, values: F32, config: dict[str, Any], architecture: str) -> F32:
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return values + np.float32(1)
    for part, count in (("attn_q.", "num_attention_heads"), ("attn_k.", "num_key_value_heads")):
        if part in name and architecture in INTERLEAVED:
            halves = values.reshape(config[count], 2, -1, *values.shape[1:])
            return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
    return values


def _rope_tensors(rope: dict[str, Any], config: dict[str, Any]) -> Iterator[tuple[str, F32]]:
    """What frequencies are divided by, where the rotation's kind is not told by keys."""
    if rope.get("rope_type") == "longrope":
        for name in ("long", "short"):
            yield f"rope_factors_{name}.weight", np.asarray(rope[f"{name}_factor"], dtype=np.float32)
    if rope.get("rope_type") == "llama3":
        dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        turns = rope["original_max_position_embeddings"] / (2 * np.pi) * rope["rope_theta"] ** (-np.arange(0, dim, 2) / dim)
        smooth = np.clip((turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"]), 0, 1)
        yield "rope_freqs.weight", (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)
