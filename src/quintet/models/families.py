"""Model families as data: what is fixed for an architecture, and what its files may say (see ``reading`` and ``layout``).

Facts per family are those of llama.cpp's graphs (``src/models/*.cpp``) and of the converters that write the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quintet.models.spec import LayerSpec


@dataclass(frozen=True, slots=True)
class EveryFew:
    """Layers i with ``start <= i % every < stop``, such as every fourth: ``EveryFew(4, 3, 4)``."""

    every: int
    start: int
    stop: int

    def __contains__(self, layer: int) -> bool:
        return self.start <= layer % self.every < self.stop


@dataclass(frozen=True, slots=True)
class Windows:
    """Layers that see a window of tokens only.

    Args:
        layers: which; the file may give another period, ``attention.sliding_window_pattern``.
        size: of a window if the file does not say it, which may say 0; 0 = there is none then.
        base: theta of their own rotation if the file does not say it; 0 = the others'.
        scaled: their rotation is stretched as the others' is.
    """

    layers: EveryFew
    size: int = 0
    base: float = 0.0
    scaled: bool = True


@dataclass(frozen=True, slots=True)
class Experts:
    """What is fixed about experts, where the file has any.

    Args:
        normalise: see ``ExpertSpec``.
        own_width: the file must say their width, ``expert_feed_forward_length``; elsewhere, if it does not, it is that of a dense model.
        always: there is no model of the architecture without them.
    """

    normalise: bool = True
    own_width: bool = False
    always: bool = True


@dataclass(frozen=True, slots=True)
class Family:
    """What is fixed for an architecture.

    Args:
        interleaved: rotary pairs are neighbours (2i, 2i+1) in this file layout; else (i, i + dim/2).
        layer: what every layer is, but for what is below and what the file says.
        qkv_bias: ``True``: always there; ``None``: if the file has them.
        freq_factors: a ``rope_freqs.weight`` tensor may be there.
        truncate: see ``RopeSpec``.
        whole_factor: files of old converters have all of YaRN's factor in ``rope.scaling.attn_factor``, which is put to YaRN's own.
        long_rope: ``rope_factors_long.weight`` and ``rope_factors_short.weight`` may be there.
        windows: layers with a window.
        experts: its models have them, or may.
        unrotated: layers whose heads are not rotated.
        embed_by_width: the embedding is scaled by sqrt(hidden).
        scale_by_width: at so many layers the products of q and k are scaled by 1 / sqrt(hidden / heads).
        layer_norm: see ``ModelSpec``.
        fused: ``attn_qkv`` holds q, k and v, and ``ffn_up`` gate and up, one after the other.
        ffn_norm: what its files call the norm before the feed-forward part.
        reads: further keys that the architecture means something by.
        defaults: what factors among them are if the file does not say it; others ask for nothing then.
        ignored: keys that its files have and that mean nothing.
    """

    interleaved: bool = False
    layer: LayerSpec = field(default_factory=LayerSpec)
    qkv_bias: bool | None = False
    freq_factors: bool = False
    truncate: bool = True
    whole_factor: bool = False
    long_rope: bool = False
    windows: Windows | None = None
    experts: Experts | None = None
    unrotated: EveryFew | None = None
    embed_by_width: bool = False
    scale_by_width: int = 0
    layer_norm: bool = False
    fused: bool = False
    ffn_norm: str = "ffn_norm"
    reads: frozenset[str] = frozenset()
    defaults: Mapping[str, float] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()


_GEMMA = LayerSpec(activation="gelu")
_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_SCALES = frozenset({"attention.scale", "embedding_scale", "residual_scale", "logit_scale", "rope.scaling.finetuned"})

_HYBRID = frozenset({f"ssm.{key}" for key in ("conv_kernel", "state_size", "group_count", "inner_size", "time_step_rank")})
_HYBRID |= {"expert_shared_feed_forward_length"}
_LONGER = frozenset({"rope.scaling.yarn_log_multiplier", "attention.temperature_scale", "attention.temperature_length"})

FAMILIES = {
    "llama": Family(interleaved=True, qkv_bias=None, freq_factors=True, experts=Experts(always=False)),  # with them it is Mixtral
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(layer=LayerSpec(qk_norm="head")),
    "qwen3moe": Family(layer=LayerSpec(qk_norm="head"), experts=Experts(own_width=True)),
    "gemma": Family(layer=_GEMMA, embed_by_width=True),
    # Its first files have neither caps nor window in their keys: converters did not write them yet, and every model of it has these.
    "gemma2": Family(
        layer=LayerSpec(activation="gelu", post_norm=True),
        windows=Windows(EveryFew(2, 0, 1), size=4096),
        embed_by_width=True,
        scale_by_width=46,
        reads=frozenset(_CAPS),
        defaults=_CAPS,
    ),
    "gemma3": Family(
        layer=LayerSpec(activation="gelu", post_norm=True, qk_norm="head"),
        windows=Windows(EveryFew(6, 0, 5), base=10000.0, scaled=False),
        embed_by_width=True,
        scale_by_width=62,
        reads=frozenset({"final_logit_softcapping"}),
    ),
    # Those of 4.0 without layers of other kinds than attention are written by the converter of those with them, which says of every model
    # what such layers are like, and how wide the part is that all tokens take: here it is all there is, ``feed_forward_length``.
    "granite": Family(interleaved=True, freq_factors=True, reads=_SCALES, ignored=_HYBRID),
    "granitemoe": Family(interleaved=True, freq_factors=True, reads=_SCALES, experts=Experts()),
    "olmoe": Family(layer=LayerSpec(qk_norm="full"), experts=Experts(normalise=False)),
    # Post-norms only; the third generation is the same architecture with windows, and its stretched rotation is that of the other layers.
    "olmo2": Family(
        layer=LayerSpec(pre_norm=False, post_norm=True, qk_norm="full"),
        windows=Windows(EveryFew(4, 0, 3), scaled=False),
        whole_factor=True,
    ),
    # llama.cpp's graph leaves the window out too: converters write it for models that were trained without one.
    "phi3": Family(long_rope=True, fused=True, ignored=frozenset({"attention.sliding_window"})),
    "mistral3": Family(interleaved=True, qkv_bias=None, freq_factors=True, experts=Experts(always=False), reads=_LONGER),
    # Trained with a window; where the file names it, it holds, as in transformers. llama.cpp has none. The config.json of 15B has an
    # epsilon of RMS norms too, which converters write, and nothing reads.
    "starcoder2": Family(
        layer=LayerSpec(activation="gelu", gated=False, o_bias=True, ffn_bias=True),
        qkv_bias=True,
        layer_norm=True,
        windows=Windows(EveryFew(1, 0, 1)),
        ignored=frozenset({"attention.layer_norm_rms_epsilon"}),
    ),
    # Softmax over those experts alone that are taken is the same as normalising what they have of all. YaRN's ramp is not rounded, as in
    # its config.json and in transformers; llama.cpp's always is.
    "gpt-oss": Family(
        layer=LayerSpec(activation="swiglu_oai", o_bias=True, ffn_bias=True, sinks=True),
        qkv_bias=True,
        truncate=False,
        windows=Windows(EveryFew(2, 0, 1)),
        experts=Experts(own_width=True),
        ffn_norm="post_attention_norm",
    ),
    "seed_oss": Family(qkv_bias=None, ffn_norm="post_attention_norm"),
    "smollm3": Family(interleaved=True, unrotated=EveryFew(4, 3, 4)),
}
