"""config.json -> GGUF's keys, and what GGUF has no key for: every key is understood, known to ask for nothing, or the reason to refuse."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quintet.errors import ModelError, counted, shorten
from quintet.models.families import FAMILIES
from quintet.models.folder.documents import Settings
from quintet.models.folder.kinds import KINDS, Kind
from quintet.models.folder.ropes import read_rotation
from quintet.models.metadata import Metadata, Value
from quintet.models.reading import EPSILON, MAX_LAYERS, MAX_USED, PATTERN, RMS_EPSILON, WINDOW
from quintet.models.spec import ModelSpec

FILE = "config.json"

SIZES = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "vocab_size": "vocab_size",
}
"""Key -> GGUF's, below ``<architecture>.``."""

FACTORS = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
"""GGUF's keys too; ``null`` = there is none, where GGUF says 0: a key that is missing may mean the family's own."""

EXPERTS = {
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "intermediate_size": "expert_feed_forward_length",
}
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "mlp_bias": (False,),
    "is_decoder": (True, False),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "use_bidirectional_attention": (False,),
    "use_mrope": (False,),
    "use_qk_norm": (False,),
    "rope_interleaved": (False,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "clip_qkv": (),
    "sliding_window": (),
    "use_sliding_window": (False,),
    "pruned_heads": ({},),
}
"""Keys that ask for something that we do not do, and the values, beside ``null``, that ask for nothing after all."""

MEANINGLESS = frozenset(
    {
        *("architectures", "auto_map", "model_type", "transformers_version", "torch_dtype", "dtype", "name_or_path", "tokenizer_class"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id"),  # the tokenizer's
        *("use_cache", "cache_implementation", "pretraining_tp", "gradient_checkpointing", "torchscript", "use_bfloat16"),
        *(
            "initializer_range",
            "attention_dropout",
            "hidden_dropout",
            "resid_pdrop",
            "residual_dropout",
            "embedding_dropout",
            "embd_pdrop",
            "attn_pdrop",
            "classifier_dropout",
        ),
        *("router_aux_loss_coef", "router_jitter_noise", "router_z_loss_coef", "output_router_logits"),
        *("id2label", "label2id", "problem_type", "num_labels", "task_specific_params", "finetuning_task", "prefix"),
        *("return_dict", "output_hidden_states", "output_attentions", "chunk_size_feed_forward", "is_llama_config"),
        *("do_sample", "temperature", "top_k", "top_p", "max_length", "min_length", "num_beams", "repetition_penalty"),
        *("attention_bias", "max_window_layers", "no_rope_layer_interval", "transformers.js_config", "unsloth_fixed", "unsloth_version"),
        *("neftune_noise_alpha", "perceiver_config", "pixel_shuffle_factor"),  # of SmolVLM's: training, and parts that it does not have
        *("experts_per_token", "initial_context_length"),  # gpt-oss's, of another implementation
    }
)
"""Keys that say nothing about how the model computes, or whose answer the tensors themselves are (``attention_bias``)."""

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Outline:
    """What a config.json says.

    Args:
        metadata: GGUF's keys.
        divisors: what tensors of GGUF would hold that a folder does not have, by their names.
        layers, vocab, experts: how many; 0 experts = there are none.
        tied: the output matrix is the embedding, unless the files have another.
        windows: of each layer, where the family's architecture has no keys for them; empty = it has, or there are none.
        unrotated: layers without a rotation, where the file lists them; ``None`` = it does not.
        attn_scale: on the products of q and k, where the file says it otherwise than GGUF; ``None`` = it does not.
        normalise: the experts' weights sum to 1, where the file says it; ``None`` = it does not.
    """

    kind: Kind
    metadata: Metadata
    divisors: Mapping[str, tuple[float, ...]]
    layers: int
    vocab: int
    experts: int
    tied: bool
    windows: tuple[int, ...]
    unrotated: frozenset[int] | None
    attn_scale: float | None
    normalise: bool | None

    def refine(self, spec: ModelSpec) -> ModelSpec:
        """What GGUF's keys made, and what they cannot say. Rows of q and k are half-split in every folder."""
        layers = []
        for i, layer in enumerate(spec.layers):
            if self.windows:
                layer = replace(layer, window=self.windows[i])
            if self.unrotated is not None:
                layer = replace(layer, rope=-1 if i in self.unrotated else 0)
            if self.attn_scale is not None:
                layer = replace(layer, attn_scale=self.attn_scale)
            if layer.experts and self.normalise is not None:
                layer = replace(layer, experts=replace(layer.experts, normalise=self.normalise))
            layers.append(layer)
        return replace(spec, tied=self.tied and spec.tied, interleaved=False, layers=tuple(layers))


def read_outline(document: dict[str, Any]) -> Outline:
    """What the object in config.json says.

    Raises:
        ModelError: a model type that is not implemented, quantised weights, a key that is wrong or not understood; by name.
    """
    type_ = document.get("model_type")
    kind = KINDS.get(type_) if isinstance(type_, str) else None
    _refuse_quantised(document, kind.method if kind else "")
    if kind is None:
        raise ModelError(f"{FILE}: 'model_type' must be one of the supported {', '.join(KINDS)}, got {shorten(type_)}.")
    if not kind.section:
        whole = Settings(FILE, document, kind.defaults)
        return _Reading(whole, whole, kind).outline()
    whole = Settings(FILE, document, {"tie_word_embeddings": kind.ties})
    section = whole.section(kind.section)
    if section is None:  # transformers has others than the defaults of the type then
        raise whole.error(kind.section, "is missing")
    inner = section.text("model_type", kind.inner[0])
    if inner not in kind.inner:
        raise section.error("model_type", f"must be {' or '.join(kind.inner)} in this family", inner)
    kind = replace(kind, defaults=KINDS[inner].within, rope=KINDS[inner].rope)
    values = document[kind.section]
    _refuse_quantised(values, kind.method)
    return _Reading(whole, Settings(FILE, values, kind.defaults, f"{kind.section}."), kind).outline()


def _refuse_quantised(document: dict[str, Any], read: str) -> None:
    found = document.get("quantization_config", document.get("compression_config"))
    if found is None:
        return
    method = found.get("quant_method") if isinstance(found, dict) else None
    if read and method == read:  # what is in codes, and what is not, the tensors say
        return
    raise ModelError(
        f"{FILE}: weights quantised with {shorten(method)} are not read: use the repository of the model that is not quantised, "
        "or a GGUF file of it."
    )


class _Reading:
    """One model's configuration.

    Args:
        whole: the file's.
        config: the language model's; the same where the file is of no more.
    """

    def __init__(self, whole: Settings, config: Settings, kind: Kind) -> None:
        self._whole, self._config, self._kind = whole, config, kind
        self._layers = config.integer("num_hidden_layers", high=MAX_LAYERS)
        self._heads = config.integer("num_attention_heads", high=1 << 16)
        self._context = config.integer("max_position_embeddings")

    def outline(self) -> Outline:
        config, kind = self._config, self._kind
        head_dim = self._head_dim()
        keys: dict[str, Any] = {theirs: config.integer(ours) for ours, theirs in SIZES.items()}
        kv_heads = config.integer("num_key_value_heads", self._heads, high=1 << 16)
        if self._heads % kv_heads:
            raise config.error("num_key_value_heads", f"must divide the {counted(self._heads, 'attention head')}", kv_heads)
        keys |= {
            "block_count": self._layers,
            "attention.head_count": self._heads,
            "attention.head_count_kv": kv_heads,
            "attention.key_length": head_dim,
            "attention.value_length": head_dim,
        }
        if FAMILIES[kind.architecture].layer_norm:
            keys[EPSILON] = config.real("norm_epsilon")
            config.know("rms_norm_eps")  # StarCoder2's largest has it too; there is no norm of its kind
        else:
            keys[RMS_EPSILON] = config.real("rms_norm_eps", 1e-6)
        keys |= {theirs: config.real(ours) for ours, theirs in FACTORS.items() if ours in kind.reads}
        keys |= {name: config.real(name) if name in config else 0.0 for name in CAPS if name in kind.reads}
        experts = self._experts(keys)
        rotation = read_rotation(config, kind, head_dim, self._context)
        keys |= rotation.keys
        unrotated = self._unrotated()
        windows = self._windows(unrotated or frozenset())
        if FAMILIES[kind.architecture].windows:
            keys |= {WINDOW: max(windows, default=0), PATTERN: memoryview(array("B", map(bool, windows)))}
            windows = ()
        self._check_activation()
        tied = self._whole.flag("tie_word_embeddings", False)
        config.know("tie_word_embeddings")  # which transformers asks the whole for
        scale = self._attn_scale(head_dim)
        normalise = config.flag("norm_topk_prob", False) if "norm_topk_prob" in kind.reads else None
        config.know(*(("quantization_config", "compression_config") if kind.method else ()))
        refuse_unasked(config, {**NEUTRAL, **kind.neutral})
        values: dict[str, Value] = {"general.architecture": kind.architecture}
        values |= {f"{kind.architecture}.{key}": value for key, value in keys.items()}
        metadata = Metadata(FILE, values)
        return Outline(
            kind, metadata, rotation.divisors, self._layers, keys["vocab_size"], experts, tied, windows, unrotated, scale, normalise
        )

    def _head_dim(self) -> int:
        config, hidden = self._config, self._config.integer("hidden_size")
        if "head_dim" not in config and hidden % self._heads:
            raise config.error("num_attention_heads", f"must divide the hidden_size {hidden}", self._heads)
        found = config.integer("head_dim", max(1, hidden // self._heads), high=1 << 16)
        if found % 2:
            raise config.error("head_dim", "must be even", found)
        return found

    def _experts(self, keys: dict[str, Any]) -> int:
        """How many there are; their keys are put into ``keys``."""
        config, reads = self._config, self._kind.reads
        names = [name for name in ("num_experts", "num_local_experts") if name in reads]
        if not names:
            return 0
        name = next((name for name in names if name in config), names[0])
        config.know(*names)
        keys["expert_count"] = config.integer(name, high=4096)
        for ours, theirs in EXPERTS.items():
            if ours in reads:
                high = min(keys["expert_count"], MAX_USED) if ours == "num_experts_per_tok" else 1 << 22
                shared = ours.startswith("shared")
                keys[theirs] = config.integer(ours, 0 if shared else None, low=0 if shared else 1, high=high)
        return int(keys["expert_count"])

    def _unrotated(self) -> frozenset[int] | None:
        if self._kind.windowed != "unrotated":
            return None
        if "no_rope_layers" in self._config:  # which says 1 where a layer is rotated
            return frozenset(i for i, rotated in enumerate(self._config.choices("no_rope_layers", self._layers, (0, 1))) if not rotated)
        period = self._config.integer("no_rope_layer_interval")
        return frozenset(i for i in range(self._layers) if (i + 1) % period == 0)

    def _windows(self, unrotated: frozenset[int]) -> tuple[int, ...]:
        """Of each layer; empty = none has one."""
        config, how = self._config, self._kind.windowed
        types = self._layer_types()
        if how == "none":
            return ()
        asked = config.flag("use_sliding_window", False) if how in ("asked", "late", "unrotated") else True
        listed = how == "listed" or (how == "unrotated" and bool(types))
        late = config.integer("max_window_layers", 28, low=0) if how == "late" else 0
        period = self._period()
        if types:
            seen = [type_ == SLIDING for type_ in types]
        elif how == "listed":
            seen = [(i + 1) % period != 0 for i in range(self._layers)]
        else:
            seen = [i in unrotated if how == "unrotated" else i >= late for i in range(self._layers)]
        must = listed and any(seen)
        size = config.integer("sliding_window") if must or (asked and "sliding_window" in config) else 0
        config.know("sliding_window")
        # Nothing is ever out of a window as long as the context: it is none, but where layers with a window rotate by their own theta.
        if not size or (size >= self._context and not self._kind.local_rope):
            return ()
        return tuple(size if windowed else 0 for windowed in seen)

    def _layer_types(self) -> list[str]:
        if "layer_types" not in self._config:
            return []
        types = self._config.choices("layer_types", self._layers, (FULL, SLIDING))
        if self._kind.windowed in ("none", "all", "asked") and SLIDING in types:
            raise self._config.error("layer_types", "must be full_attention for all layers of this family", SLIDING)
        return [] if self._kind.windowed in ("all", "asked") else types

    def _period(self) -> int:
        config, period = self._config, self._kind.period
        if period and "sliding_window_pattern" in config:
            period = config.integer("sliding_window_pattern", high=1 << 16)
        return period

    def _check_activation(self) -> None:
        config, kind = self._config, self._kind
        gelu = FAMILIES[kind.architecture].layer.activation == "gelu"
        first_gemma = kind.architecture == "gemma"
        allowed = ("gelu_pytorch_tanh",) if gelu else ("silu", "swish")
        if first_gemma:  # its files say gelu and mean its tanh form, which they were trained with
            allowed = ("gelu_pytorch_tanh", "gelu")
        key = "hidden_act"
        if gelu and kind.architecture != "starcoder2" and not (first_gemma and "hidden_act" in config):
            key = "hidden_activation"  # Gemma's own
        found = config.text(key, allowed[0])
        config.know("hidden_act", "hidden_activation")
        if found not in allowed:
            raise config.error(key, f"must be {' or '.join(allowed)} in this family; others are not implemented", found)

    def _attn_scale(self, head_dim: int) -> float | None:
        if "query_pre_attn_scalar" not in self._kind.reads:
            return None
        scalar = self._config.real("query_pre_attn_scalar")
        return 0.0 if scalar == head_dim else scalar**-0.5


def refuse_unasked(config: Settings, neutral: Mapping[str, tuple[Any, ...]], meaningless: frozenset[str] = MEANINGLESS) -> None:
    """
    Args:
        neutral: see ``NEUTRAL``.
        meaningless: see ``MEANINGLESS``.

    Raises:
        ModelError: nobody asked for a key that may ask for something.
    """
    for key, value in config.unasked().items():
        if key in meaningless or key.startswith("_") or any(value == one and type(value) is type(one) for one in neutral.get(key, ())):
            continue
        raise config.error(key, "asks for something that is not implemented", value)
