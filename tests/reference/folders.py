"""Hugging Face folders for tests: the folder that a converter would have made a tiny GGUF file of, bit for bit.

Weights are the GGUF file's own (F32, F16 or BF16), in the layout that transformers saves: rows of q and k half-split, Gemma's norms less
1, experts one by one or fused as the family has them. It shares no code with the reader.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Raw = tuple[str, tuple[int, ...], bytes]
"""Safetensors type, shape (rows first) and bytes of a tensor."""

MODEL_TYPES = {"mistral3": "ministral3", "qwen3moe": "qwen3_moe", "gemma3": "gemma3_text", "granitemoe": "granitemoeshared"}
"""Architecture -> model type, where they differ."""

UNWRITTEN = ("gpt-oss",)
"""Architectures whose folders are not written here."""
INTERLEAVED = ("llama", "mistral3", "granite", "granitemoe", "smollm3")
GEMMAS = ("gemma", "gemma2", "gemma3")
BOTH_NORMS = ("gemma2", "gemma3")
SMOLLM_STEPS = [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]
QWEN_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_STEPS = [
    {"type": "Split", "pattern": {"Regex": QWEN_PATTERN}, "behavior": "Isolated", "invert": False},
    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
]


def write_safetensors(path: Path, tensors: Mapping[str, Raw]) -> Path:
    """One file of tensors, in their order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (type_, shape, data) in tensors.items():
        header[name] = {"dtype": type_, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(data for _, _, data in tensors.values()))
    return path


def raw(values: npt.NDArray[np.float32]) -> Raw:
    return "F32", values.shape, np.ascontiguousarray(values, "<f4").tobytes()


class Source:
    """A GGUF file as the ``gguf`` package reads it."""

    def __init__(self, path: Path) -> None:
        self._reader = gguf.GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.architecture = str(self._field("general.architecture"))

    def _field(self, key: str) -> Any:
        field = self._reader.fields.get(key)
        return None if field is None else field.contents()

    def setting(self, key: str, default: Any = None) -> Any:
        """The value under ``<architecture>.<key>``; floats as the file has them, in single precision."""
        found = self._field(f"{self.architecture}.{key}")
        return default if found is None else found

    def tokenizer(self, key: str) -> Any:
        return self._field(f"tokenizer.ggml.{key}")

    def raw(self, name: str) -> Raw:
        tensor = self.tensors[name]
        return tensor.tensor_type.name, tuple(int(n) for n in tensor.shape[::-1]), tensor.data.tobytes()


def write_folder(folder: Path, path: Path, *, shards: int = 1, fused: bool = False, changes: Mapping[str, Any] | None = None) -> Path:
    """The folder of ``path``, a GGUF file of ``tiny_model``, with float tensors only.

    Args:
        shards: files of weights; with several there is an index.
        fused: experts as newer versions of transformers may have them, one tensor for all.
        changes: put over config.json; ``None`` takes a key out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = Source(path)
    config = {**_config(source), **(changes or {})}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    write_tokenizer(folder, source)
    tensors = dict(_tensors(source, fused))
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
    files = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(tensors)}
    for file in sorted(set(files.values())):
        write_safetensors(folder / file, {name: tensors[name] for name in tensors if files[name] == file})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))
    return folder


# --- config.json


def _config(source: Source) -> dict[str, Any]:
    get, arch = source.setting, source.architecture
    gemma = arch in GEMMAS
    config: dict[str, Any] = {
        "model_type": MODEL_TYPES.get(arch, arch),
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": get("attention.key_length"),
        "max_position_embeddings": get("context_length"),
        "vocab_size": get("vocab_size"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "norm_epsilon": get("attention.layer_norm_epsilon"),
        "rope_theta": get("rope.freq_base", 10000.0),
        "rope_scaling": _scaling(source),
        "tie_word_embeddings": "output.weight" not in source.tensors,
        "hidden_activation" if gemma else "hidden_act": "gelu_pytorch_tanh" if gemma or arch == "starcoder2" else "silu",
        "torch_dtype": "bfloat16",
        "attention_dropout": 0.0,
        "use_cache": True,
    }
    granite = {
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    if arch.startswith("granite"):
        config |= {theirs: get(ours) for theirs, ours in granite.items()}
    if arch in BOTH_NORMS:
        caps = {name: get(name) for name in ("attn_logit_softcapping", "final_logit_softcapping")}
        config |= {"sliding_window": get("attention.sliding_window"), "query_pre_attn_scalar": config["head_dim"], **caps}
    if arch == "gemma3":
        config |= {"sliding_window_pattern": 6, "rope_local_base_freq": 10000.0}
    if arch == "olmo2" and get("attention.sliding_window"):
        config |= {"model_type": "olmo3", "sliding_window": get("attention.sliding_window")}
    if arch == "phi3":
        rotated = get("rope.dimension_count") / config["head_dim"]
        original = get("rope.scaling.original_context_length", config["max_position_embeddings"])
        config |= {"partial_rotary_factor": rotated, "original_max_position_embeddings": original}
    return config | _experts(source)


def _experts(source: Source) -> dict[str, Any]:
    get = source.setting
    count, used, width = get("expert_count"), get("expert_used_count"), get("expert_feed_forward_length")
    if not count:
        return {}
    if source.architecture == "llama":
        return {"model_type": "mixtral", "num_local_experts": count, "num_experts_per_tok": used}
    if source.architecture == "granitemoe":
        shared = get("expert_shared_feed_forward_length")
        return {"num_local_experts": count, "num_experts_per_tok": used, "shared_intermediate_size": shared}
    normalised = source.architecture == "qwen3moe"
    config = {"num_experts": count, "num_experts_per_tok": used, "norm_topk_prob": normalised}
    return {**config, "moe_intermediate_size": width} if normalised else config


def _scaling(source: Source) -> dict[str, Any] | None:
    get = source.setting
    kind, factor, attn = get("rope.scaling.type"), get("rope.scaling.factor"), get("rope.scaling.attn_factor", 1.0)
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "longrope":
        factors = {name: source.tensors[f"rope_factors_{name}.weight"].data.tolist() for name in ("long", "short")}
        return {"type": "longrope", "long_factor": factors["long"], "short_factor": factors["short"], "attention_factor": attn}
    if kind == "yarn":
        own = {} if attn == 1.0 else {"attention_factor": attn * (1 + 0.1 * math.log(factor))}
        if source.architecture == "mistral3":
            own = {"mscale": 1.0, "mscale_all_dim": get("rope.scaling.yarn_log_multiplier")}
            own |= {"llama_4_scaling_beta": get("attention.temperature_scale")}
        original = get("rope.scaling.original_context_length")
        fast = get("rope.scaling.yarn_beta_fast", 32.0)
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, "beta_fast": fast, **own}
    return None


# --- tensors

_LAYER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_qkv": "self_attn.qkv_proj",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate",
}  # fmt: skip
_STARCODER = {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output_norm.bias": "model.norm.bias",
    "output.weight": "lm_head.weight",
}


def _tensors(source: Source, fused: bool) -> Sequence[tuple[str, Raw]]:
    found: list[tuple[str, Raw]] = []
    for name in source.tensors:
        if name.startswith("rope_f") or "_exps" in name or "_shexp" in name:
            continue
        if name in _TOP:
            found.append((_TOP[name], _changed(source, name)))
        else:
            _, layer, part, what = name.split(".")
            found.append((f"model.layers.{layer}.{_part(source, part)}.{what}", _changed(source, name)))
    for index in range(source.setting("block_count") if source.setting("expert_count") else 0):
        found += _layer_experts(source, index, fused)
    return found


def _part(source: Source, part: str) -> str:
    arch = source.architecture
    if arch in BOTH_NORMS and part == "ffn_norm":
        return "pre_feedforward_layernorm"
    if arch == "starcoder2" and part in _STARCODER:
        return _STARCODER[part]
    if arch == "phi3" and part == "ffn_up":
        return "mlp.gate_up_proj"
    if part == "ffn_gate_inp" and arch in ("llama", "granitemoe"):
        return "block_sparse_moe.gate" if arch == "llama" else "block_sparse_moe.router.layer"
    return _LAYER[part]


def _changed(source: Source, name: str) -> Raw:
    """A tensor as transformers has it."""
    type_, shape, data = source.raw(name)
    if source.architecture in INTERLEAVED and (".attn_q." in name or ".attn_k." in name):
        half = source.setting("rope.dimension_count") // 2
        rows = np.frombuffer(data, np.uint8).reshape(-1, half, 2, len(data) // shape[0])
        return type_, shape, rows.swapaxes(1, 2).tobytes()
    if source.architecture in GEMMAS and name.endswith("norm.weight"):
        return raw(np.frombuffer(data, np.float32) - np.float32(1))
    return type_, shape, data


def _layer_experts(source: Source, layer: int, fused: bool) -> Sequence[tuple[str, Raw]]:
    tensors = {
        (part, kind): source.raw(f"blk.{layer}.ffn_{part}_{kind}.weight")
        for part in ("gate", "up", "down")
        for kind in ("exps", "shexp")
        if f"blk.{layer}.ffn_{part}_{kind}.weight" in source.tensors
    }
    prefix = f"model.layers.{layer}."
    if source.architecture == "granitemoe":
        block, shared = prefix + "block_sparse_moe.", prefix + "shared_mlp."
        return [
            (block + "input_linear.weight", _joined(tensors["gate", "exps"], tensors["up", "exps"])),
            (block + "output_linear.weight", tensors["down", "exps"]),
            (shared + "input_linear.weight", _joined(tensors["gate", "shexp"], tensors["up", "shexp"])),
            (shared + "output_linear.weight", tensors["down", "shexp"]),
        ]
    mixtral = source.architecture == "llama"
    block = prefix + ("block_sparse_moe." if mixtral else "mlp.") + "experts."
    if fused:
        both = _joined(tensors["gate", "exps"], tensors["up", "exps"])
        return [(block + "gate_up_proj", both), (block + "down_proj", tensors["down", "exps"])]
    names = {"gate": "w1", "up": "w3", "down": "w2"} if mixtral else {part: f"{part}_proj" for part in ("gate", "up", "down")}
    found = []
    for part, theirs in names.items():
        type_, (count, *shape), data = tensors[part, "exps"]
        size = len(data) // count
        found += [
            (f"{block}{i}.{theirs}.weight", (type_, tuple(shape), data[i * size : (i + 1) * size])) for i in range(count)
        ]  # one expert's rows follow another's
    return found


def _joined(first: Raw, second: Raw) -> Raw:
    """Two tensors of one type, the rows of each matrix of the second after those of the first."""
    (type_, shape, _), (other, _, _) = first, second
    assert type_ == other
    count = shape[0] if len(shape) == 3 else 1
    parts = [np.frombuffer(data, np.uint8).reshape(count, -1) for _, _, data in (first, second)]
    return type_, (*shape[:-2], 2 * shape[-2], shape[-1]), np.concatenate(parts, axis=1).tobytes()


# --- the tokenizer


def write_tokenizer(folder: Path, source: Source) -> None:
    """tokenizer.json and what goes with it, of a GGUF file's byte-level vocabulary."""
    tokens, types = source.tokenizer("tokens"), source.tokenizer("token_type")
    merges = [merge.split(" ") for merge in source.tokenizer("merges")]
    vocabulary = {token: i for i, (token, type_) in enumerate(zip(tokens, types, strict=True)) if type_ == 1}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": i, "content": token, "special": True, **plain} for i, token in enumerate(tokens) if types[i] == 3]
    steps = QWEN_STEPS if source.tokenizer("pre") == "qwen2" else SMOLLM_STEPS
    document = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"trim_offsets": True, **step} for step in steps]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "vocab": vocabulary, "merges": merges},
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    end = tokens[source.tokenizer("eos_token_id")]
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": end, "eos_token": end, "add_bos_token": False}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [source.tokenizer("eos_token_id")]}))
