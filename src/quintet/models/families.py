"""Model families as data: which keys and tensors an architecture has, and what they mean in our own words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from quintet.errors import ModelError, shorten
from quintet.models.metadata import Metadata, quoted
from quintet.models.spec import ModelSpec, RopeSpec

TOKENS_KEY = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as the file's directory lists it.

    Args:
        type: GGML type name.
        shape: as in the file: input features first.
        offset: bytes from the start of tensor data.
        size: bytes.
    """

    type: str
    shape: tuple[int, ...]
    offset: int
    size: int

    @property
    def cols(self) -> int:
        return self.shape[0]

    @property
    def rows(self) -> int:
        return self.shape[1] if len(self.shape) > 1 else 1


@dataclass(frozen=True, slots=True)
class Family:
    """What is fixed for an architecture.

    Args:
        interleaved: rotary pairs are neighbours (2i, 2i+1) in this file layout; else (i, i + dim/2).
        qkv_bias: ``True``: always there; ``None``: if the file has them.
        freq_factors: a ``rope_freqs.weight`` tensor may be there.
    """

    interleaved: bool
    qkv_bias: bool | None
    freq_factors: bool


FAMILIES = {
    "llama": Family(interleaved=True, qkv_bias=None, freq_factors=True),
    "qwen2": Family(interleaved=False, qkv_bias=True, freq_factors=False),
}

SIZES = {"context": "context_length", "layers": "block_count", "hidden": "embedding_length", "ffn": "feed_forward_length"}

READ = {
    *SIZES.values(),
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.finetuned",  # says how the model was made, not how to run it
    "tensor_data_layout",  # likewise; the layout follows from the architecture
}
"""Keys below ``<architecture>.`` that are understood."""

NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.sliding_window": (0,),
    "attention.causal": (True,),
    "attention.max_alibi_bias": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "attention.scale": (0.0,),
    "pooling_type": (0,),
    "use_parallel_residual": (True,),  # written by old converters for every model; ignored by the llama graph
    "rope.scaling.yarn_ext_factor": (-1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "rope.scaling.alpha": (0.0,),
}
"""Keys that ask for something we do not do, and the values that ask for nothing after all."""

LAYER = {
    "attn_norm": ("attn_norm.weight", "", "hidden"),
    "q": ("attn_q.weight", "q", "hidden"),
    "k": ("attn_k.weight", "kv", "hidden"),
    "v": ("attn_v.weight", "kv", "hidden"),
    "o": ("attn_output.weight", "hidden", "q"),
    "ffn_norm": ("ffn_norm.weight", "", "hidden"),
    "gate": ("ffn_gate.weight", "ffn", "hidden"),
    "up": ("ffn_up.weight", "ffn", "hidden"),
    "down": ("ffn_down.weight", "hidden", "ffn"),
}
"""Our name -> (name after ``blk.<i>.``, rows, columns); sizes by name, ``""`` = a vector."""

BIASES = {"q_bias": ("attn_q.bias", "", "q"), "k_bias": ("attn_k.bias", "", "kv"), "v_bias": ("attn_v.bias", "", "kv")}

Infos = Mapping[str, TensorInfo]


def read_spec(meta: Metadata, infos: Infos, floats: Callable[[str], Sequence[float]]) -> ModelSpec:
    """The model's description.

    Args:
        infos: the file's tensors, by their names in the file.
        floats: reads a float32 tensor by name.

    Raises:
        ModelError: a key is missing, mistyped or contradictory, or asks for something that is not implemented.
    """
    arch = meta.text("general.architecture")
    family = FAMILIES.get(arch)
    if family is None:
        raise meta.error("general.architecture", f"must be one of the supported {', '.join(FAMILIES)}", arch)
    _refuse_unimplemented(meta, f"{arch}.")
    sizes = {ours: meta.integer(f"{arch}.{key}", high=1 << 27) for ours, key in SIZES.items()}
    heads = meta.integer(f"{arch}.attention.head_count", high=1 << 16)
    kv_heads = meta.integer(f"{arch}.attention.head_count_kv", heads, high=1 << 16)
    if heads % kv_heads:
        raise meta.error(f"{arch}.attention.head_count_kv", f"must divide the {heads} attention heads", kv_heads)
    head_dim = _head_dim(meta, arch, sizes["hidden"], heads)
    return ModelSpec(
        architecture=arch,
        name=meta.text("general.name", ""),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=_vocab(meta, arch, infos),
        norm_eps=meta.real(f"{arch}.attention.layer_norm_rms_epsilon"),
        qkv_bias=f"blk.0.{BIASES['q_bias'][0]}" in infos if family.qkv_bias is None else family.qkv_bias,
        tied="output.weight" not in infos,
        rope=_rope(meta, arch, head_dim, sizes["context"], _freq_factors(meta, family, infos, head_dim, floats)),
        **sizes,
    )


def expected_tensors(spec: ModelSpec, meta: Metadata, infos: Infos) -> dict[str, str]:
    """Our name -> the file's name, for exactly the tensors that the model has.

    Raises:
        ModelError: a tensor is missing, has another shape than the keys say, or is not part of what we implement.
    """
    names = {}
    for ours, theirs, rows, cols in _shapes(spec):
        info = infos.get(theirs)
        want = (cols, rows) if rows else (cols,)
        if info is None:
            raise ModelError(f"{meta.file}: tensor '{theirs}' is missing; a {spec.architecture} model of {spec.layers} layers needs it.")
        if info.shape != want:
            raise ModelError(f"{meta.file}: the shape of tensor '{theirs}' must be {list(want)}, got {shorten(list(info.shape))}.")
        names[ours] = theirs
    for name in infos.keys() - set(names.values()) - {"rope_freqs.weight"}:
        raise ModelError(f"{meta.file}: tensor {quoted(name)} is not part of a {spec.architecture} model as implemented here.")
    return names


def _shapes(spec: ModelSpec) -> Iterator[tuple[str, str, int, int]]:
    """(our name, the file's name, rows or 0 for a vector, columns). Lazy: the number of layers is only a claim so far."""
    sizes = {
        "": 0,
        "hidden": spec.hidden,
        "q": spec.heads * spec.head_dim,
        "kv": spec.kv_heads * spec.head_dim,
        "ffn": spec.ffn,
    }
    yield "embed", "token_embd.weight", spec.vocab, spec.hidden
    yield "output_norm", "output_norm.weight", 0, spec.hidden
    if not spec.tied:
        yield "output", "output.weight", spec.vocab, spec.hidden
    parts = {**LAYER, **(BIASES if spec.qkv_bias else {})}
    for i in range(spec.layers):
        for ours, (theirs, rows, cols) in parts.items():
            yield f"{i}.{ours}", f"blk.{i}.{theirs}", sizes[rows], sizes[cols]


def _refuse_unimplemented(meta: Metadata, prefix: str) -> None:
    for key in meta:
        name = key.removeprefix(prefix)
        if name == key or name in READ:
            continue
        value = meta.get(key)
        if not isinstance(value, int | float) or value not in NEUTRAL.get(name, ()):
            raise meta.error(key, "asks for something that is not implemented", value)


def _head_dim(meta: Metadata, arch: str, hidden: int, heads: int) -> int:
    head_dim = meta.integer(f"{arch}.attention.key_length", hidden // heads, high=1 << 16)
    if f"{arch}.attention.key_length" not in meta and hidden % heads:
        raise meta.error(f"{arch}.attention.head_count", f"must divide the embedding length {hidden}", heads)
    value_length = meta.integer(f"{arch}.attention.value_length", head_dim)
    if value_length != head_dim:
        raise meta.error(f"{arch}.attention.value_length", f"must equal the key length {head_dim} to be supported", value_length)
    return head_dim


def _vocab(meta: Metadata, arch: str, infos: Infos) -> int:
    info = infos.get("token_embd.weight")
    if info is None:
        raise ModelError(f"{meta.file}: tensor 'token_embd.weight' is missing.")
    rows = info.rows
    declared = meta.integer(f"{arch}.vocab_size", rows)
    tokens = len(meta.strings(TOKENS_KEY)) if TOKENS_KEY in meta else rows
    for key, size in ((f"{arch}.vocab_size", declared), (TOKENS_KEY, tokens)):
        if size != rows:
            raise meta.error(key, f"must count as many tokens as 'token_embd.weight' has rows, {rows}", size)
    return rows


def _rope(meta: Metadata, arch: str, head_dim: int, context: int, freq_factors: tuple[float, ...]) -> RopeSpec:
    dim = meta.integer(f"{arch}.rope.dimension_count", head_dim)
    if dim != head_dim or dim % 2:
        raise meta.error(f"{arch}.rope.dimension_count", f"must be even and equal the head dimension {head_dim} to be supported", dim)
    scaling = meta.text(f"{arch}.rope.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn"):
        raise meta.error(f"{arch}.rope.scaling.type", "must be one of none, linear, yarn; others are not implemented", scaling)
    old = f"{arch}.rope.scale_linear"  # before rope.scaling.* existed
    factor = meta.real(f"{arch}.rope.scaling.factor", meta.real(old, 1.0)) if scaling != "none" else 1.0
    return RopeSpec(
        dim=dim,
        base=meta.real(f"{arch}.rope.freq_base", 10000.0),
        interleaved=FAMILIES[arch].interleaved,
        scaling="none" if scaling == "linear" and factor == 1.0 else scaling,
        factor=factor,
        original_context=meta.integer(f"{arch}.rope.scaling.original_context_length", context) if scaling == "yarn" else 0,
        attn_factor=meta.real(f"{arch}.rope.scaling.attn_factor", 1.0),
        beta_fast=meta.real(f"{arch}.rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=meta.real(f"{arch}.rope.scaling.yarn_beta_slow", 1.0),
        freq_factors=freq_factors,
    )


def _freq_factors(
    meta: Metadata, family: Family, infos: Infos, head_dim: int, floats: Callable[[str], Sequence[float]]
) -> tuple[float, ...]:
    name = "rope_freqs.weight"
    if name not in infos:
        return ()
    if not family.freq_factors:
        raise ModelError(f"{meta.file}: tensor '{name}' is not part of this architecture as implemented here.")
    if infos[name].shape != (head_dim // 2,):
        raise ModelError(f"{meta.file}: the shape of tensor '{name}' must be [{head_dim // 2}], got {shorten(list(infos[name].shape))}.")
    factors = floats(name)
    if not all(math.isfinite(factor) and factor > 0 for factor in factors):
        raise ModelError(f"{meta.file}: tensor '{name}' must hold finite numbers above 0.")
    return tuple(factors)
