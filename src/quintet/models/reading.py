"""From a file's keys to what its model is: every key is understood, known to ask for nothing, or the reason to refuse the file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from quintet.errors import ModelError, counted, shorten
from quintet.models.families import FAMILIES, Family
from quintet.models.layout import EMBEDDING, OUTPUT, ROPE_FREQS, ROPE_LONG, ROPE_SHORT, Infos
from quintet.models.metadata import Metadata
from quintet.models.spec import ExpertSpec, LayerSpec, ModelSpec, RopeSpec

ARCHITECTURE = "general.architecture"
TOKENS_KEY = "tokenizer.ggml.tokens"
RMS_EPSILON, EPSILON = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
WINDOW, PATTERN, LOCAL_BASE = "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"

MAX_LAYERS = 1024
MAX_USED = 64
"""Experts of a token that the core can take."""

SIZES = {"context": "context_length", "hidden": "embedding_length", "ffn": "feed_forward_length"}

READ = {
    *SIZES.values(),
    "block_count",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.finetuned",  # says how the model was made, not how to run it, but for the family that reads it
    "tensor_data_layout",  # likewise; the layout follows from the architecture
}
"""Keys below ``<architecture>.`` that are understood in every family."""

NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_gating_func": (0, 1),  # softmax
    "expert_weights_scale": (0.0, 1.0),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    WINDOW: (0,),
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
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "rope.scaling.alpha": (0.0,),
}
"""Keys that ask for something we do not do, and the values that ask for nothing after all."""

EXPERTS = {"expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length"}
"""Keys that are understood in families that have experts."""

Floats = Callable[[str], Sequence[float]]


def read_spec(meta: Metadata, infos: Infos, floats: Floats) -> ModelSpec:
    """The model's description.

    Args:
        infos: the file's tensors, by their names in the file.
        floats: reads a float32 tensor by name.

    Raises:
        ModelError: a key is missing, mistyped or contradictory, or asks for something that is not implemented.
    """
    arch = meta.text(ARCHITECTURE)
    family = FAMILIES.get(arch)
    if family is None:
        raise meta.error(ARCHITECTURE, f"must be one of the supported {', '.join(FAMILIES)}", arch)
    _refuse_unimplemented(meta, f"{arch}.", family)
    return _Reading(meta, infos, floats, arch, family).spec()


def _refuse_unimplemented(meta: Metadata, prefix: str, family: Family) -> None:
    understood = READ | family.reads | family.ignored
    understood |= {WINDOW, PATTERN, LOCAL_BASE} if family.windows else set()
    understood.add(EPSILON if family.layer_norm else RMS_EPSILON)
    understood |= EXPERTS if family.experts else set()
    for key in meta:
        name = key.removeprefix(prefix)
        if name == key or name in understood:
            continue
        value = meta.get(key)
        if not isinstance(value, int | float) or value not in NEUTRAL.get(name, ()):
            raise meta.error(key, "asks for something that is not implemented", value)


class _Reading:
    """One file of a family."""

    def __init__(self, meta: Metadata, infos: Infos, floats: Floats, arch: str, family: Family) -> None:
        self._meta, self._infos, self._floats, self._arch, self._family = meta, infos, floats, arch, family
        self._sizes = {ours: meta.integer(self._key(key), high=1 << 27) for ours, key in SIZES.items()}
        self._count = meta.integer(self._key("block_count"), high=MAX_LAYERS)
        self._heads = meta.integer(self._key("attention.head_count"), high=1 << 16)
        # The converter of models that have layers without attention lists it by layer, for those too that have none.
        self._kv_heads = meta.same_integer(self._key("attention.head_count_kv"), self._count, self._heads, high=1 << 16)
        if self._heads % self._kv_heads:
            raise meta.error(
                self._key("attention.head_count_kv"), f"must divide the {counted(self._heads, 'attention head')}", self._kv_heads
            )
        self._head_dim = self._read_head_dim()

    def _key(self, name: str) -> str:
        return f"{self._arch}.{name}"

    def spec(self) -> ModelSpec:
        meta, hidden = self._meta, self._sizes["hidden"]
        layers, ropes = self._layers(self._rope())
        return ModelSpec(
            architecture=self._arch,
            name=meta.text("general.name", ""),
            heads=self._heads,
            kv_heads=self._kv_heads,
            head_dim=self._head_dim,
            vocab=self._vocab(),
            norm_eps=meta.real(self._key(EPSILON if self._family.layer_norm else RMS_EPSILON)),
            layer_norm=self._family.layer_norm,
            tied=OUTPUT not in self._infos,
            interleaved=self._family.interleaved,
            ropes=ropes,
            layers=layers,
            embed_scale=math.sqrt(hidden) if self._family.embed_by_width else self._factor("embedding_scale", 1.0),
            logit_scale=1 / self._factor("logit_scale", 1.0),  # it is what logits are divided by
            logit_cap=self._factor("final_logit_softcapping", 0.0),
            **self._sizes,
        )

    def _factor(self, name: str, neutral: float) -> float:
        """A factor of the family's, or its neutral value; 0 asks for nothing, as a missing key does where the family has no default."""
        key = self._key(name)
        if key not in self._meta:
            return self._family.defaults.get(name, neutral)
        return self._meta.real(key) if name in self._family.reads and self._meta.get(key) != 0 else neutral

    def _layers(self, rope: RopeSpec) -> tuple[tuple[LayerSpec, ...], tuple[RopeSpec, ...]]:
        family, meta = self._family, self._meta
        bias = family.qkv_bias if family.qkv_bias is not None else "blk.0.attn_q.bias" in self._infos
        by_width = self._count == family.scale_by_width
        if by_width and self._heads > self._sizes["hidden"]:
            raise meta.error(self._key("attention.head_count"), f"must be at most the width {self._sizes['hidden']}", self._heads)
        usual = replace(
            family.layer,
            qkv_bias=bias,
            attn_scale=1 / math.sqrt(self._sizes["hidden"] // self._heads) if by_width else self._factor("attention.scale", 0.0),
            temperature=self._factor("attention.temperature_scale", 0.0),
            temperature_length=meta.integer(self._key("attention.temperature_length"), rope.original_context),
            attn_cap=self._factor("attn_logit_softcapping", 0.0),
            residual_scale=self._factor("residual_scale", 1.0),
            experts=self._experts(),
            # Granite's files say by this key that the model was trained without a rotation.
            rope=-1 if "rope.scaling.finetuned" in family.reads and not meta.flag(self._key("rope.scaling.finetuned"), True) else 0,
        )
        window = meta.integer(self._key(WINDOW), family.windows.size, low=0) if family.windows else 0
        local = self._local_rope(rope) if window else rope
        windowed = replace(usual, window=window, rope=0 if local == rope else 1)
        seen = self._windowed() if window else frozenset()
        layers = [windowed if i in seen else usual for i in range(self._count)]
        layers = [replace(layer, rope=-1) if family.unrotated and i in family.unrotated else layer for i, layer in enumerate(layers)]
        return tuple(layers), (rope,) if local == rope else (rope, local)

    def _experts(self) -> ExpertSpec | None:
        meta, ways = self._meta, self._family.experts
        if ways is None:
            return None
        count = meta.integer(self._key("expert_count"), None if ways.always else 0, low=int(ways.always), high=4096)
        if not count:
            return None
        used = meta.integer(self._key("expert_used_count"), high=min(count, MAX_USED))
        width = meta.integer(self._key("expert_feed_forward_length"), None if ways.own_width else self._sizes["ffn"], high=1 << 22)
        shared = meta.integer(self._key("expert_shared_feed_forward_length"), 0, low=0, high=1 << 22)
        return ExpertSpec(count, used, width, shared, ways.normalise)

    def _windowed(self) -> frozenset[int]:
        """The layers with a window: every so many, or as the file lists them."""
        assert self._family.windows is not None
        key = self._key(PATTERN)
        if key not in self._meta:
            return frozenset(i for i in range(self._count) if i in self._family.windows.layers)
        if isinstance(self._meta.get(key), memoryview):  # of booleans, as llama.cpp's converters write it
            return frozenset(i for i, windowed in enumerate(self._meta.numbers(key, self._count, flags=True) or ()) if windowed)
        period = self._meta.integer(key, low=0, high=1 << 16)
        return frozenset(i for i in range(self._count) if not period or i % period < period - 1)

    def _local_rope(self, rope: RopeSpec) -> RopeSpec:
        windows = self._family.windows
        assert windows is not None
        base = self._meta.real(self._key(LOCAL_BASE), windows.base or rope.base)
        return replace(rope, base=base) if windows.scaled else RopeSpec(rope.dim, base, freq_factors=rope.freq_factors)

    def _read_head_dim(self) -> int:
        meta, hidden, heads = self._meta, self._sizes["hidden"], self._heads
        key = self._key("attention.key_length")
        head_dim = meta.integer(key, hidden // heads, high=1 << 16)
        if key not in meta and hidden % heads:
            raise meta.error(self._key("attention.head_count"), f"must divide the embedding length {hidden}", heads)
        value_length = meta.integer(self._key("attention.value_length"), head_dim)
        if value_length != head_dim:
            raise meta.error(self._key("attention.value_length"), f"must equal the key length {head_dim} to be supported", value_length)
        return head_dim

    def _vocab(self) -> int:
        meta = self._meta
        info = self._infos.get(EMBEDDING)
        if info is None:
            raise ModelError(f"{meta.file}: tensor '{EMBEDDING}' is missing.")
        rows = info.rows
        declared = meta.integer(self._key("vocab_size"), rows)
        tokens = len(meta.strings(TOKENS_KEY)) if TOKENS_KEY in meta else rows
        for key, size in ((self._key("vocab_size"), declared), (TOKENS_KEY, tokens)):
            if size != rows:
                raise meta.error(key, f"must count as many tokens as '{EMBEDDING}' has rows, {rows}", size)
        return rows

    def _rope(self) -> RopeSpec:
        meta, context = self._meta, self._sizes["context"]
        dim = meta.integer(self._key("rope.dimension_count"), self._head_dim)
        if dim > self._head_dim or dim % 2:
            raise meta.error(self._key("rope.dimension_count"), f"must be even and at most the head dimension {self._head_dim}", dim)
        scaling = meta.text(self._key("rope.scaling.type"), "linear")
        kinds = ("none", "linear", "yarn", *(("longrope",) if self._family.long_rope else ()))
        if scaling not in kinds:
            raise meta.error(self._key("rope.scaling.type"), f"must be one of {', '.join(kinds)}; others are not implemented", scaling)
        old = self._key("rope.scale_linear")  # before rope.scaling.* existed
        stretched = scaling in ("linear", "yarn")
        factor = meta.real(self._key("rope.scaling.factor"), meta.real(old, 1.0)) if stretched else 1.0
        return RopeSpec(
            dim=dim,
            base=meta.real(self._key("rope.freq_base"), 10000.0),
            scaling="none" if not stretched or (scaling == "linear" and factor == 1.0) else scaling,
            factor=factor,
            original_context=meta.integer(self._key("rope.scaling.original_context_length"), context),
            attn_factor=self._attn_factor(1 + 0.1 * math.log(factor) if scaling == "yarn" else 1.0),
            beta_fast=meta.real(self._key("rope.scaling.yarn_beta_fast"), 32.0),
            beta_slow=meta.real(self._key("rope.scaling.yarn_beta_slow"), 1.0),
            log_multiplier=self._factor("rope.scaling.yarn_log_multiplier", 0.0),
            truncate=self._family.truncate,
            **self._factors(dim),
        )

    def _attn_factor(self, own: float) -> float:
        """What rotated values are multiplied by, beside YaRN's ``own``.

        Converters write config.json's ``attention_factor``, which has YaRN's own in it, as ``yarn_attn_factor``, and llama.cpp takes YaRN's
        own whatever it is. Those of 2025 wrote it for OLMo 3 as ``attn_factor``, and llama.cpp puts it to YaRN's own: that counts it twice.
        """
        meta, whole = self._meta, self._key("rope.scaling.yarn_attn_factor")
        if (found := meta.real(whole, 1.0)) != 1.0 and not math.isclose(found, own, rel_tol=1e-6):
            raise meta.error(whole, f"must be 1, or {own:.7g} as YaRN itself has it; others are not implemented", found)
        more = meta.real(self._key("rope.scaling.attn_factor"), 1.0)
        return 1.0 if self._family.whole_factor and math.isclose(more, own, rel_tol=1e-6) else more

    def _factors(self, dim: int) -> dict[str, tuple[float, ...]]:
        """What the file divides frequencies by, in the names of ``RopeSpec``."""
        family, factors = self._family, {}
        allowed = {ROPE_FREQS: family.freq_factors, ROPE_SHORT: family.long_rope, ROPE_LONG: family.long_rope}
        for name in allowed.keys() & self._infos.keys():
            if not allowed[name]:
                raise ModelError(f"{self._meta.file}: tensor '{name}' is not part of this architecture as implemented here.")
            factors["long_factors" if name == ROPE_LONG else "freq_factors"] = self._divisors(name, dim // 2)
        return factors

    def _divisors(self, name: str, pairs: int) -> tuple[float, ...]:
        shape, file = self._infos[name].shape, self._meta.file
        if shape != (pairs,):
            raise ModelError(f"{file}: the shape of tensor '{name}' must be [{pairs}], got {shorten(list(shape))}.")
        factors = self._floats(name)
        if not all(math.isfinite(factor) and factor > 0 for factor in factors):
            raise ModelError(f"{file}: tensor '{name}' must hold finite numbers above 0.")
        return tuple(factors)
