"""Tiny GGUF models with random weights: every family flag and tensor type in a file of a few hundred kilobytes.

The weights mean nothing, but they are scaled so that attention is not uniform, every part of a layer moves the logits, and the logits
spread like those of a trained model. The same specification gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from tests.reference.dequantize import dequantize

PLAIN_TYPES = (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.F16, Type.BF16, Type.F32)
K_TYPES = (Type.Q4_K, Type.Q5_K, Type.Q6_K)
"""Blocks of 256 columns."""
ALL_FORMATS = (*K_TYPES, Type.Q2_K, Type.IQ2_XS, Type.IQ4_NL, Type.MXFP4, Type.Q4_0)
"""With Q8_0, a type of each format that the engine packs integers in."""
SMALL_TYPES = (
    Type.Q1_0, Type.Q2_K, Type.Q3_K, Type.IQ1_S, Type.IQ1_M, Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.IQ3_XXS, Type.IQ3_S, Type.IQ4_NL,
    Type.IQ4_XS, Type.NVFP4,
)  # fmt: skip
"""Others that the ``gguf`` package can only read."""
FEW_VALUED_TYPES = (Type.TQ1_0, Type.TQ2_0, Type.MXFP4)


@dataclass(frozen=True)
class TinySpec:
    """A model file to write.

    Args:
        types: of the matrices, dealt round in the order they are written; a type whose blocks do not fit the columns becomes Q8_0.
        rope: metadata under ``{architecture}.rope.``.
        freq_factors: write ``rope_freqs.weight``.
        long_factors: write ``rope_factors_long.weight`` and ``rope_factors_short.weight``.
        rotated: dimensions of a head; 0 = all.
        metadata: more values under ``{architecture}.``.
        experts: their number, how many a token takes, the width of each and that of the one that all take; a number of 0 = none.
        thinks: two of its unused tokens are the tags of think blocks, control tokens that a chat template names.
    """

    name: str
    architecture: str = "llama"
    layers: int = 2
    hidden: int = 160
    heads: int = 5
    kv_heads: int = 1
    head_dim: int = 32
    ffn: int = 352
    vocab: int = 277
    context: int = 2048
    tied: bool = False
    types: tuple[Type, ...] = (Type.Q8_0,)
    rope: dict[str, Any] = field(default_factory=dict, hash=False)
    freq_factors: bool = False
    long_factors: bool = False
    rotated: int = 0
    metadata: dict[str, Any] = field(default_factory=dict, hash=False)
    experts: tuple[int, int, int, int] = (0, 0, 0, 0)
    seed: int = 1
    thinks: bool = False

    @property
    def biased(self) -> bool:
        return self.architecture in ("qwen2", "gpt-oss", "starcoder2", "seed_oss")

    @property
    def sinks(self) -> bool:
        """And biases wherever there is a matrix."""
        return self.architecture == "gpt-oss"

    @property
    def mean_norms(self) -> bool:
        """LayerNorms, and matrices, with biases; no gate."""
        return self.architecture == "starcoder2"

    @property
    def fused(self) -> bool:
        return self.architecture == "phi3"

    @property
    def norms(self) -> tuple[str, ...]:
        """Of a layer, each as wide as the model."""
        before, after = ("attn_norm", "ffn_norm"), ("post_attention_norm", "post_ffw_norm")
        if self.architecture in ("gpt-oss", "seed_oss"):
            return "attn_norm", "post_attention_norm"
        return after if self.architecture == "olmo2" else (*before, *after) if self.architecture in ("gemma2", "gemma3") else before

    @property
    def qk_norms(self) -> tuple[int, int] | None:
        """Widths of the norms of q and of k."""
        if self.architecture in ("olmo2", "olmoe"):
            return self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (self.head_dim, self.head_dim) if self.architecture in ("qwen3", "qwen3moe", "gemma3") else None


LINEAR = {"scaling.type": "linear", "scaling.factor": 2.5}
LLAMA_3 = {"freq_base": 500000.0}
YARN = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 64}

FAMILIES: tuple[TinySpec, ...] = (
    TinySpec("llama-tied", tied=True, types=PLAIN_TYPES),
    TinySpec("llama-untied", hidden=480, heads=6, kv_heads=2, head_dim=80, ffn=224, vocab=290, types=PLAIN_TYPES[::-1]),
    TinySpec("llama-linear", layers=3, hidden=96, heads=3, kv_heads=3, rope=LINEAR, types=PLAIN_TYPES),
    TinySpec("llama-3", hidden=256, heads=4, kv_heads=2, head_dim=64, freq_factors=True, rope=LLAMA_3, types=ALL_FORMATS),
    TinySpec("llama-wide", hidden=256, head_dim=128, ffn=512, types=(*K_TYPES, Type.Q4_1)),
    TinySpec("qwen2-tied", "qwen2", hidden=768, heads=6, head_dim=128, ffn=512, tied=True, rope={"freq_base": 1e6}, types=K_TYPES),
    TinySpec("qwen2-untied", "qwen2", hidden=480, heads=6, kv_heads=2, head_dim=80, vocab=301, types=PLAIN_TYPES),
    TinySpec("qwen2-yarn", "qwen2", hidden=128, heads=4, kv_heads=2, rope=YARN, types=(Type.F16, Type.Q5_1)),
    TinySpec("llama-yarn", hidden=128, heads=4, kv_heads=4, rope={**YARN, "scaling.attn_factor": 0.9, "scaling.yarn_beta_fast": 16.0}),
)
"""Every flag of a ``ModelSpec`` set and unset, odd sizes throughout."""

_CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0}
_GRANITE = {"attention.scale": 0.11, "embedding_scale": 0.6, "residual_scale": 0.4, "logit_scale": 0.7}

FAMILIES += (
    TinySpec("qwen3", "qwen3", hidden=96, heads=5, kv_heads=1, head_dim=64, tied=True, rope={"freq_base": 1e6}, types=PLAIN_TYPES),
    TinySpec("gemma", "gemma", hidden=96, heads=4, kv_heads=2, head_dim=48, tied=True, types=PLAIN_TYPES),
    TinySpec(
        "gemma2", "gemma2", layers=3, hidden=160, heads=4, kv_heads=2, head_dim=48, tied=True, types=PLAIN_TYPES,
        metadata={"attention.sliding_window": 9, **_CAPS},
    ),
    TinySpec(
        "gemma3", "gemma3", layers=7, hidden=96, heads=4, kv_heads=1, head_dim=32, ffn=192, tied=True, types=PLAIN_TYPES,
        rope={"freq_base": 1e6, "scaling.type": "linear", "scaling.factor": 8.0}, metadata={"attention.sliding_window": 21},
    ),
    TinySpec("granite", "granite", hidden=160, heads=5, kv_heads=1, tied=True, types=PLAIN_TYPES, metadata=_GRANITE),
    TinySpec("olmo2", "olmo2", hidden=128, heads=4, kv_heads=2, types=PLAIN_TYPES, rope={"freq_base": 5e5}),
    TinySpec(
        "olmo3", "olmo2", layers=5, hidden=96, heads=3, kv_heads=3, types=PLAIN_TYPES, rope={**YARN, "freq_base": 5e5},
        metadata={"attention.sliding_window": 40, "attention.sliding_window_pattern": [True, True, True, False, True]},
    ),
    TinySpec("fused", "phi3", hidden=128, heads=4, kv_heads=2, types=PLAIN_TYPES, metadata={"attention.sliding_window": 64}),
    TinySpec(
        "phi4-mini", "phi3", hidden=192, heads=3, kv_heads=1, head_dim=64, rotated=48, long_factors=True, tied=True, types=(Type.Q8_0,),
        rope={"scaling.type": "longrope", "scaling.original_context_length": 300, "scaling.attn_factor": 1.19},
    ),
    TinySpec("mixtral", hidden=96, heads=3, kv_heads=3, ffn=96, types=PLAIN_TYPES, experts=(6, 2, 96, 0)),
    TinySpec("qwen3moe", "qwen3moe", hidden=128, heads=3, kv_heads=1, head_dim=64, types=PLAIN_TYPES, experts=(40, 4, 64, 0)),
    TinySpec("olmoe", "olmoe", hidden=128, heads=4, kv_heads=4, ffn=64, types=PLAIN_TYPES, experts=(9, 3, 64, 0)),
    TinySpec(
        "granitemoe", "granitemoe", hidden=160, heads=5, kv_heads=1, ffn=96, tied=True, types=PLAIN_TYPES, metadata=_GRANITE,
        experts=(5, 2, 96, 160),
    ),
    TinySpec(
        "gpt-oss", "gpt-oss", layers=3, hidden=96, heads=4, kv_heads=2, head_dim=48, types=PLAIN_TYPES,
        # The ramp ends a hair below pair 5, so that llama.cpp, which rounds it up, has the same one.
        rope={**YARN, "freq_base": 150000.0, "scaling.yarn_beta_slow": 0.850469}, metadata={"attention.sliding_window": 17},
        experts=(7, 3, 64, 0),
    ),
    TinySpec(
        "mistral3", "mistral3", hidden=96, heads=4, kv_heads=2, head_dim=48, tied=True, types=PLAIN_TYPES,
        rope={**YARN, "freq_base": 1e6, "scaling.yarn_log_multiplier": 0.7}, metadata={"attention.temperature_scale": 0.4},
    ),
    TinySpec("seed-oss", "seed_oss", hidden=96, heads=4, kv_heads=1, head_dim=48, types=PLAIN_TYPES, rope={"freq_base": 1e7}),
    TinySpec("starcoder2", "starcoder2", hidden=128, heads=4, kv_heads=2, tied=True, types=PLAIN_TYPES, rope={"freq_base": 1e5}),
    TinySpec("smollm3", "smollm3", layers=5, hidden=96, heads=3, kv_heads=1, tied=True, types=PLAIN_TYPES, rope={"freq_base": 5e6}),
)  # fmt: skip
"""Those that do more than llama: norms of q and k and after the blocks, windows, caps, scales, fused and partly rotated heads."""

FLOAT_FAMILIES = tuple(replace(spec, types=(Type.F32,)) for spec in FAMILIES)
KEPT_FLOATS = tuple(
    replace(next(spec for spec in FAMILIES if spec.name == name), name=f"{name}-floats", types=(Type.F32, Type.F16, Type.BF16))
    for name in ("qwen3moe", "gemma2", "qwen2-yarn", "granitemoe", "fused")
)
"""Models of all float types, to be loaded as they are."""

RECORDED = Path(__file__).with_name("llama_cpp_tiny.npz")
"""Logits float32 [rows, V] of ``RECORDED_ROWS`` of each float family over ``random_ids``: ``bench.quality.accuracy_peers`` wrote it."""
RECORDED_ROWS = [0, 1, 100, 511]

SINGLE_TYPES = tuple(
    TinySpec(f"all-{kind.name}", layers=1, hidden=256, heads=4, kv_heads=2, head_dim=64, ffn=512, types=(kind,))
    for kind in (*PLAIN_TYPES, *K_TYPES, *SMALL_TYPES, *FEW_VALUED_TYPES)
)
"""One model per tensor type, so that a failure names the type."""


_CENTRES = {Type.Q2_K: 1.5, Type.Q4_K: 7.5, Type.Q5_K: 15.5}
"""Minimum that puts the middle code at 0, of types that have one."""
_SCALES = {Type.Q4_K: 0, Type.Q5_K: 0, Type.Q2_K: 80, Type.Q3_K: 108, Type.Q6_K: 208}
"""Where a block's fp16 scale is, and its minimum's after it; 0 in the types that are not here."""


def _random_blocks(kind: Type, values: npt.NDArray[np.float32], rng: np.random.RandomState) -> npt.NDArray[np.uint8]:
    """Random valid blocks in the shape and with the spread of ``values`` [N, K]."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.randint(0, 256, (values.shape[0], values.shape[1] // block, size), dtype=np.uint8)
    centre = _CENTRES.get(kind)
    scale = rng.uniform(0.5, 1.5, raw.shape[:2]).astype(np.float32)

    def put(factor: float) -> npt.NDArray[np.uint8]:
        fields = scale * factor if centre is None else np.stack([scale, scale * centre], axis=-1) * factor
        halves = np.ascontiguousarray(fields, dtype=np.float16)
        if kind == Type.IQ1_M:  # its fp16 is the highest nibbles of four words
            nibbles = (halves.view(np.uint16)[..., None] >> np.array([0, 4, 8, 12], np.uint16)).astype(np.uint8) & 15
            raw[..., 49::2] = raw[..., 49::2] & 15 | nibbles << 4
        elif kind == Type.NVFP4:  # four scales of 4 bits of exponent and 3 of mantissa
            raw[..., :4] = np.clip(np.rint(8 * (np.log2(scale * factor) + 8)), 1, 126).astype(np.uint8)[..., None]
        else:
            at = _SCALES.get(kind, 0)
            raw[..., at : at + (2 if centre is None else 4)] = halves.view(np.uint8).reshape(*raw.shape[:2], -1)
        return raw.reshape(values.shape[0], -1)

    small = 2**-5 if kind == Type.NVFP4 else 1e-3
    spread = float(dequantize(put(small), kind).std()) / small
    return put(float(values.std()) / spread)


def _encode(kind: Type, values: npt.NDArray[np.float32], rng: np.random.RandomState) -> tuple[npt.NDArray[Any], Type]:
    if values.shape[1] % gguf.GGML_QUANT_SIZES[kind][0]:
        return _encode(Type.Q8_0, values, rng)
    return _random_blocks(kind, values, rng) if kind in K_TYPES + SMALL_TYPES else gguf.quants.quantize(values, kind), kind


def _matrices(spec: TinySpec) -> Iterator[tuple[str, int, int, float]]:
    """Name, rows, columns and gain of every matrix, in file order."""
    wide, narrow = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    yield "token_embd", spec.vocab, spec.hidden, 3
    parts: tuple[tuple[str, int, int, float], ...] = (
        ("attn_q", wide, spec.hidden, 1.7),
        ("attn_k", narrow, spec.hidden, 1.7),
        ("attn_v", narrow, spec.hidden, 1),
        ("attn_output", spec.hidden, wide, 2),
        ("ffn_gate", spec.ffn, spec.hidden, 1.5),
        ("ffn_up", spec.ffn, spec.hidden, 1.5),
        ("ffn_down", spec.hidden, spec.ffn, 2),
    )
    if spec.fused:
        fused = (("attn_qkv", wide + 2 * narrow, spec.hidden, 1.5), ("ffn_up", 2 * spec.ffn, spec.hidden, 1.5))
        parts = (*fused, *(part for part in parts if part[0] in ("attn_output", "ffn_down")))
    if spec.experts[0]:
        parts = parts[:4]
    if spec.mean_norms:
        parts = tuple(part for part in parts if part[0] != "ffn_gate")
    for layer in range(spec.layers):
        for name, rows, columns, gain in parts:
            yield f"blk.{layer}.{name}", rows, columns, gain
    if not spec.tied:
        yield "output", spec.vocab, spec.hidden, 3


def _add_tensors(writer: gguf.GGUFWriter, spec: TinySpec) -> None:
    rng = np.random.RandomState(spec.seed)  # its stream is frozen for ever, so that recorded figures keep their models

    def normal(*shape: int) -> npt.NDArray[np.float32]:
        return rng.standard_normal(shape).astype(np.float32)

    for index, (name, rows, columns, gain) in enumerate(_matrices(spec)):
        data, kind = _encode(spec.types[index % len(spec.types)], normal(rows, columns) * np.float32(gain / columns**0.5), rng)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
        if spec.mean_norms and name.endswith(("ffn_up", "ffn_down")):
            writer.add_tensor(f"{name}.bias", normal(rows))
        if spec.biased and name.endswith(("attn_q", "attn_k", "attn_v") + (("attn_output",) if spec.sinks or spec.mean_norms else ())):
            writer.add_tensor(f"{name}.bias", normal(rows))
    count, _, ffn, shared = spec.experts
    for layer in range(spec.layers if spec.sinks else 0):
        writer.add_tensor(f"blk.{layer}.attn_sinks.weight", 2 * normal(spec.heads))
        for name, width, spread in (("gate", ffn, 4), ("up", ffn, 4), ("down", spec.hidden, 1)):  # so that some are clamped
            writer.add_tensor(f"blk.{layer}.ffn_{name}_exps.bias", np.float32(spread) * normal(count, width))
        writer.add_tensor(f"blk.{layer}.ffn_gate_inp.bias", normal(count))
    parts = (("gate", False, 1.5), ("up", False, 1.5), ("down", True, 2))
    for layer in range(spec.layers if count else 0):
        writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", normal(count, spec.hidden) * np.float32(8 / spec.hidden**0.5))
        for many, width in ((True, ffn), (False, shared)) if shared else ((True, ffn),):
            for index, (name, out, gain) in enumerate(parts):
                rows, columns = (spec.hidden, width) if out else (width, spec.hidden)
                values = normal(rows * (count if many else 1), columns) * np.float32(gain / columns**0.5)
                data, kind = _encode(spec.types[index % len(spec.types)], values, rng)
                data = data.reshape(count, rows, -1) if many else data
                writer.add_tensor(f"blk.{layer}.ffn_{name}_{'exps' if many else 'shexp'}.weight", data, raw_dtype=kind)
    for name in ("output_norm", *(f"blk.{i}.{norm}" for i in range(spec.layers) for norm in spec.norms)):
        writer.add_tensor(f"{name}.weight", 1 + 0.3 * normal(spec.hidden))
        if spec.mean_norms:
            writer.add_tensor(f"{name}.bias", 0.5 * normal(spec.hidden))
    for layer in range(spec.layers if spec.qk_norms else 0):
        for name, width in zip("qk", spec.qk_norms or (), strict=True):
            writer.add_tensor(f"blk.{layer}.attn_{name}_norm.weight", np.float32(1.3) + 0.3 * normal(width))
    pairs = (spec.rotated or spec.head_dim) // 2
    if spec.freq_factors:
        writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, pairs, dtype=np.float32))
    if spec.long_factors:
        writer.add_tensor("rope_factors_long.weight", np.linspace(1, 30, pairs, dtype=np.float32))
        writer.add_tensor("rope_factors_short.weight", np.linspace(1, 2, pairs, dtype=np.float32))


def _byte_characters() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE vocabularies (GPT-2's table)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = count(256)
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def add_tokenizer(writer: gguf.GGUFWriter, spec: TinySpec) -> None:
    """A byte-level vocabulary of as many tokens as the model has, most of them unused."""
    merges = ["t h", "th e", "i n", "a n", "Ġ a", "e r"]
    tokens = [*_byte_characters(), *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    unused = [f"<unused{i}>" for i in range(spec.vocab - len(tokens))]
    types = [5] * len(unused)
    if spec.thinks:
        unused[:2], types[:2] = ("<think>", "</think>"), (3, 3)
        writer.add_chat_template("{{ messages }}<think>{# it ends with </think> #}")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if spec.architecture == "qwen2" else "smollm")
    writer.add_token_list(tokens + unused)
    writer.add_token_types([1] * (len(tokens) - 1) + [3] + types)  # normal, control, unused
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - 1)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)


def random_ids(spec: TinySpec, length: int, seed: int = 1) -> npt.NDArray[np.int32]:
    """Token ids: int32 [length]."""
    return np.random.RandomState(seed).randint(0, spec.vocab, length).astype(np.int32)


def write_tiny(path: Path, spec: TinySpec, split: int = 0) -> Path:
    """Write the model and return ``path``; or, with ``split``, files of at most so many tensors, and return the first."""
    writer = gguf.GGUFWriter(path, spec.architecture, split_max_tensors=split)
    writer.add_name(spec.name)
    writer.add_context_length(spec.context)
    writer.add_block_count(spec.layers)
    writer.add_embedding_length(spec.hidden)
    writer.add_feed_forward_length(spec.ffn)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_rope_dimension_count(spec.rotated or spec.head_dim)
    (writer.add_layer_norm_eps if spec.mean_norms else writer.add_layer_norm_rms_eps)(1e-5)
    writer.add_vocab_size(spec.vocab)
    writer.add_quantization_version(2)
    puts: dict[type, Callable[[str, Any], None]] = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
    puts |= {list: writer.add_array, bool: writer.add_bool}
    if spec.experts[0]:
        writer.add_expert_count(spec.experts[0])
        writer.add_expert_used_count(spec.experts[1])
        writer.add_expert_feed_forward_length(spec.experts[2])
        writer.add_expert_shared_feed_forward_length(spec.experts[3])
    for key, value in {**{f"rope.{key}": value for key, value in spec.rope.items()}, **spec.metadata}.items():
        puts[type(value)](f"{spec.architecture}.{key}", value)
    add_tokenizer(writer, spec)
    _add_tensors(writer, spec)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(path.parent.glob(f"{path.stem}-00001-of-*.gguf")) if split else path
