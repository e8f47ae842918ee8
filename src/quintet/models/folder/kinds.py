"""Hugging Face's model types as data: which architecture each is, what its keys mean when they are missing, what its tensors are called.

Facts are those of transformers' configuration and modelling files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

BLOCKS, SCALES = "_blocks", "_scales"
"""Ends of names of codes in MXFP4, and of their scales."""

EACH = "{expert}"
"""In a name: there is one such tensor for each expert."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a tensor of a GGUF file is in a folder.

    Args:
        name: there, below the layer's; with ``EACH``, the matrices of all experts are put one after the other.
        half: it is the first (0) or the second (1) half of each matrix's rows; ``None`` = all of them.
        form: ``rows`` as GGUF has them; ``turns``: matrices are turned, and halves are rows in turns; ``mxfp4``: codes, likewise in turns,
            with a tensor of scales beside them.
    """

    name: str
    half: Literal[0, 1] | None = None
    form: Literal["rows", "turns", "mxfp4"] = "rows"


Names = Mapping[str, tuple[Source, ...]]
"""GGUF's name, below ``blk.<layer>.`` -> where it may be; the first that is there counts."""


def _names(names: Mapping[str, str]) -> dict[str, tuple[Source, ...]]:
    return {ours: (Source(theirs),) for ours, theirs in names.items()}


TOP = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight", "output_norm.bias": "norm.bias"}
"""Below the model's own name."""

_ATTENTION = _names(
    {f"attn_{part}.{what}": f"self_attn.{part}_proj.{what}" for part in "qkv" for what in ("weight", "bias")}
    | {"attn_output.weight": "self_attn.o_proj.weight"}
    | {f"attn_{part}_norm.weight": f"self_attn.{part}_norm.weight" for part in "qk"}
)
_PRE_NORMS = _names({"attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight"})
_POST_NORMS = _names(
    {"post_attention_norm.weight": "post_attention_layernorm.weight", "post_ffw_norm.weight": "post_feedforward_layernorm.weight"}
)
_ALL_NORMS = _POST_NORMS | _names({"attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "pre_feedforward_layernorm.weight"})
_STARCODER = _names(
    {
        f"{ours}.{what}": f"{theirs}.{what}"
        for ours, theirs in {
            "attn_norm": "input_layernorm",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        }.items()
        for what in ("weight", "bias")
    }
)
_DENSE = _names({f"ffn_{part}.weight": f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")})
_FUSED = _names(
    {
        "attn_qkv.weight": "self_attn.qkv_proj.weight",
        "attn_output.weight": "self_attn.o_proj.weight",
        "ffn_up.weight": "mlp.gate_up_proj.weight",
        "ffn_down.weight": "mlp.down_proj.weight",
    }
)


def _experts(block: str, router: str, gate: str, up: str, down: str) -> dict[str, tuple[Source, ...]]:
    """One tensor for each expert, or, as newer files may have it, one for all, gate and up together."""
    return {
        "ffn_gate_inp.weight": (Source(f"{block}.{router}.weight"),),
        "ffn_gate_exps.weight": (Source(f"{block}.experts.{EACH}.{gate}.weight"), Source(f"{block}.experts.gate_up_proj", 0)),
        "ffn_up_exps.weight": (Source(f"{block}.experts.{EACH}.{up}.weight"), Source(f"{block}.experts.gate_up_proj", 1)),
        "ffn_down_exps.weight": (Source(f"{block}.experts.{EACH}.{down}.weight"), Source(f"{block}.experts.down_proj")),
    }


_GRANITE_EXPERTS = {
    "ffn_gate_inp.weight": (Source("block_sparse_moe.router.layer.weight"),),
    "ffn_gate_exps.weight": (Source("block_sparse_moe.input_linear.weight", 0),),
    "ffn_up_exps.weight": (Source("block_sparse_moe.input_linear.weight", 1),),
    "ffn_down_exps.weight": (Source("block_sparse_moe.output_linear.weight"),),
    "ffn_gate_shexp.weight": (Source("shared_mlp.input_linear.weight", 0),),
    "ffn_up_shexp.weight": (Source("shared_mlp.input_linear.weight", 1),),
    "ffn_down_shexp.weight": (Source("shared_mlp.output_linear.weight"),),
}

_MATRIX = "mlp.experts.{}_proj"


def _oai(ours: str, matrix: str, half: Literal[0, 1] | None) -> dict[str, tuple[Source, ...]]:
    """An expert's matrix of gpt-oss, in codes or not, and its bias."""
    name = _MATRIX.format(matrix)
    weights = (Source(f"{name}{BLOCKS}", half, "mxfp4"), Source(name, half, "turns"))
    return {f"ffn_{ours}_exps.weight": weights, f"ffn_{ours}_exps.bias": (Source(f"{name}_bias", half, "turns"),)}


_OAI = (
    _names(
        {
            "attn_norm.weight": "input_layernorm.weight",
            "attn_output.bias": "self_attn.o_proj.bias",
            "attn_sinks.weight": "self_attn.sinks",
            "post_attention_norm.weight": "post_attention_layernorm.weight",
            "ffn_gate_inp.weight": "mlp.router.weight",
            "ffn_gate_inp.bias": "mlp.router.bias",
        }
    )
    | _oai("gate", "gate_up", 0)
    | _oai("up", "gate_up", 1)
    | _oai("down", "down", None)
)

Windowed = Literal["none", "all", "asked", "late", "listed", "unrotated"]
"""Layers that ``sliding_window`` is about: none (there is no such key), all, all or none as ``use_sliding_window`` asks, those from
``max_window_layers`` on if it asks, those that ``layer_types`` lists, those without a rotation if it asks. Of the last, ``layer_types``
decides where it is there."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A ``model_type``.

    Args:
        architecture: GGUF's.
        names: of a layer's tensors.
        defaults: what a missing key means, where that is not what it means for most.
        reads: further keys that are understood, of ``config.FACTORS`` and ``config.EXPERTS``.
        neutral: keys that ask for something that we do not do, with the values that ask for nothing after all.
        windowed: see ``Windowed``.
        period: of layers with a window, the last of every so many has none, where ``layer_types`` is missing.
        local_rope: layers with a window rotate by their own theta, unscaled.
        one_more: norms multiply by 1 + weight.
        section: the key of the language model's configuration inside the whole's; empty = it is the whole.
        ties: where there is one, what the whole's means by leaving out ``tie_word_embeddings``, which is the one that counts.
        inner: model types that it may name there, whose defaults count; the first one is meant where it names none.
        inside: further defaults of one that is named there: transformers leaves out what is as its class has it.
        prefixes: what tensors' names may begin with.
        skipped: beginnings of names that are not the language model's.
        rope: what rotates where nothing is said of it.
        method: of quantised weights that are read; empty = none is.
    """

    architecture: str
    names: Names = field(default_factory=lambda: _ATTENTION | _PRE_NORMS | _DENSE)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    reads: frozenset[str] = frozenset()
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    windowed: Windowed = "none"
    period: int = 0
    local_rope: bool = False
    one_more: bool = False
    section: str = ""
    ties: bool = False
    inner: tuple[str, ...] = ()
    inside: Mapping[str, Any] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ("model.",)
    skipped: tuple[str, ...] = ()
    rope: Mapping[str, Any] = field(default_factory=dict)
    method: str = ""

    @property
    def within(self) -> Mapping[str, Any]:
        """All that a missing key means where it is named inside another's configuration."""
        return {**self.inside, **self.defaults}


_GEMMA: dict[str, Any] = {"tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 256}
_GRANITE = dict.fromkeys(("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"), 1.0)
_LATE = {"sliding_window": 4096, "num_key_value_heads": 32}
_CAPS = frozenset({"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"})
_OLMO = {"rms_norm_eps": 1e-5}
_WINDOW_SIZE = {"sliding_window_size": (4096,)}  # of an older implementation; it says the same as ``sliding_window``


def _sizes(layers: int, ffn: int, vocab: int, context: int) -> dict[str, int]:
    return {
        **{"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": layers, "intermediate_size": ffn},
        **{"vocab_size": vocab, "max_position_embeddings": context},
    }


_GEMMA3 = Kind(
    "gemma3",
    _ATTENTION | _ALL_NORMS | _DENSE,
    {
        **_GEMMA,
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
    },
    _CAPS,
    windowed="listed",
    period=6,
    local_rope=True,
    one_more=True,
)

_MINISTRAL = Kind(
    "mistral3",
    defaults={"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128},
    inside=_sizes(layers=34, ffn=14336, vocab=131072, context=262144),
    windowed="all",
    rope={
        **{"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384},
        **{"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
    },
)

KINDS: Mapping[str, Kind] = {
    "llama": Kind("llama", inside=_sizes(layers=32, ffn=11008, vocab=32000, context=2048)),
    "mistral": Kind(
        "llama",
        defaults={"sliding_window": 4096, "num_key_value_heads": 8},
        inside=_sizes(layers=32, ffn=14336, vocab=32000, context=131072),
        windowed="all",
    ),
    "mixtral": Kind(
        "llama",
        _ATTENTION | _PRE_NORMS | _experts("block_sparse_moe", router="gate", gate="w1", up="w3", down="w2"),
        {"rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "num_key_value_heads": 8},
        frozenset({"num_local_experts", "num_experts_per_tok"}),
        windowed="all",
    ),
    "qwen2": Kind("qwen2", defaults=_LATE, windowed="late"),
    "qwen3": Kind("qwen3", defaults={**_LATE, "head_dim": 128}, windowed="late"),
    "qwen3_moe": Kind(
        "qwen3moe",
        _ATTENTION | _PRE_NORMS | _experts("mlp", router="gate", gate="gate_proj", up="up_proj", down="down_proj"),
        {"norm_topk_prob": False, "sliding_window": 4096, "num_key_value_heads": 4},
        frozenset({"num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"}),
        {
            **{"decoder_sparse_step": (1,), "mlp_only_layers": ([],)},
            # The coder's, which transformers has no names for: its models of this type all have norms of q and k, and no shared expert.
            **{"use_qk_norm": (True,), "qkv_bias": (False,), "shared_expert_intermediate_size": (0,)},
        },
        windowed="asked",
    ),
    "gemma": Kind("gemma", defaults={**_GEMMA, "num_key_value_heads": 16}, one_more=True),
    "gemma2": Kind(
        "gemma2",
        _ATTENTION | _ALL_NORMS | _DENSE,
        {
            **_GEMMA,
            "num_key_value_heads": 4,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        _CAPS,
        _WINDOW_SIZE,
        windowed="listed",
        period=2,
        one_more=True,
    ),
    "gemma3_text": _GEMMA3,
    "phi3": Kind(
        "phi3",
        _PRE_NORMS | _FUSED,
        {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
        neutral={"lm_head_bias": (False,), "full_attn_mod": (1,), "interpolate_factor": (1,)},
        windowed="all",
    ),
    "granite": Kind("granite", defaults=_GRANITE, reads=frozenset(_GRANITE)),
    "granitemoe": Kind(
        "granitemoe",
        _ATTENTION | _PRE_NORMS | _GRANITE_EXPERTS,
        _GRANITE,
        frozenset({*_GRANITE, "num_local_experts", "num_experts_per_tok"}),
    ),
    "granitemoeshared": Kind(
        "granitemoe",
        _ATTENTION | _PRE_NORMS | _GRANITE_EXPERTS,
        _GRANITE,
        frozenset({*_GRANITE, "num_local_experts", "num_experts_per_tok", "shared_intermediate_size"}),
    ),
    "olmo2": Kind("olmo2", _ATTENTION | _POST_NORMS | _DENSE, _OLMO),
    "olmo3": Kind(
        "olmo2",
        _ATTENTION | _POST_NORMS | _DENSE,
        {**_OLMO, "sliding_window": 4096, "rope_theta": 500000.0},
        windowed="listed",
        period=4,
        local_rope=True,
    ),
    "olmoe": Kind(
        "olmoe",
        _ATTENTION | _PRE_NORMS | _experts("mlp", router="gate", gate="gate_proj", up="up_proj", down="down_proj"),
        {**_OLMO, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False},
        frozenset({"num_experts", "num_experts_per_tok", "norm_topk_prob"}),
        {"clip_qkv": ()},
    ),
    "ministral3": _MINISTRAL,
    "starcoder2": Kind(
        "starcoder2",
        _ATTENTION | _STARCODER,
        {"tie_word_embeddings": True, "norm_epsilon": 1e-5, "num_key_value_heads": 2},
        neutral={"use_bias": (True,), "mlp_type": ("default",), "norm_type": ("layer_norm",)},
        windowed="all",
    ),
    "gpt_oss": Kind(
        "gpt-oss",
        _ATTENTION | _OAI,
        {
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "head_dim": 64,
            "num_key_value_heads": 8,
            "sliding_window": 128,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
        },
        frozenset({"num_local_experts", "num_experts_per_tok", "intermediate_size"}),
        {"swiglu_limit": (7.0,), "swiglu_alpha": (1.702,)},
        windowed="listed",
        period=2,
        rope={"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False},
        method="mxfp4",
    ),
    "seed_oss": Kind(
        "seed_oss",
        _ATTENTION | _DENSE | _names({"attn_norm.weight": "input_layernorm.weight"}) | _POST_NORMS,
        {"head_dim": 128, "num_key_value_heads": 8},
        neutral={"attention_out_bias": (False,)},
    ),
    "smollm3": Kind(
        "smollm3",
        defaults={"tie_word_embeddings": True, "no_rope_layer_interval": 4, "rope_theta": 2000000.0, "num_key_value_heads": 4},
        windowed="unrotated",
    ),
}

_SEEING: dict[str, Any] = {
    "section": "text_config",
    "ties": True,
    "prefixes": ("language_model.model.", "model.language_model."),
    "skipped": ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."),
}

_IDEFICS3 = Kind(
    "llama",
    section="text_config",
    inner=("llama",),
    prefixes=("model.text_model.",),
    skipped=("model.vision_model.", "model.connector."),
    neutral={"qk_layer_norms": (False,), "use_resampler": (False,)},
)

KINDS = {
    **KINDS,
    # What sees images: the language model; an encoder is read by models/vision/folder.py, where it is implemented.
    "idefics3": _IDEFICS3,
    "smolvlm": _IDEFICS3,
    "gemma3": replace(_GEMMA3, inner=("gemma3_text",), **_SEEING),
    "mistral3": replace(_MINISTRAL, inner=("mistral", "ministral3"), **_SEEING),
}


def left_out(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the language model's configuration inside a file means by what it leaves out; nothing of a type that is not known."""
    whole, part = KINDS.get(str(document.get("model_type"))), document.get("text_config")
    if not isinstance(part, dict):
        return {}
    kind = KINDS.get(str(part.get("model_type", whole.inner[0] if whole and whole.inner else "")))
    return kind.within if kind else {}
