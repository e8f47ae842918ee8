"""Keys that published config.json files have beside those that count: none of them is a reason to refuse a folder."""

from __future__ import annotations

from typing import Any

import pytest

from quintet.models.folder.config import read_outline

SIZES = {
    **{"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1},
    **{"max_position_embeddings": 4096, "vocab_size": 100, "rms_norm_eps": 1e-5},
}
COMMON: dict[str, Any] = {
    **{"architectures": ["A"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": [2, 3], "initializer_range": 0.02},
    **{"torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True, "rope_theta": 10000.0, "pad_token_id": None},
    **{"_attn_implementation_autoset": True, "unsloth_fixed": True},
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "SmolLM2": {
        **{"model_type": "llama", "hidden_act": "silu", "is_llama_config": True, "rope_interleaved": False, "rope_scaling": None},
        **{"transformers.js_config": {"kv_cache_dtype": {}}, "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1},
    },
    "Qwen2.5": {
        **{"model_type": "qwen2", "hidden_act": "silu", "max_window_layers": 21, "sliding_window": 131072, "use_sliding_window": False},
        **{"use_mrope": False, "tie_word_embeddings": True},
    },
    "Qwen3 with experts": {
        **{"model_type": "qwen3_moe", "decoder_sparse_step": 1, "mlp_only_layers": [], "num_experts": 8, "num_experts_per_tok": 2},
        **{
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "output_router_logits": False,
            "router_aux_loss_coef": 0.001,
            "head_dim": 32,
        },
        **{"max_window_layers": 48, "sliding_window": None, "use_sliding_window": False, "attention_bias": False, "rope_scaling": None},
    },
    "Qwen3-Coder": {
        **{"model_type": "qwen3_moe", "decoder_sparse_step": 1, "mlp_only_layers": [], "num_experts": 8, "num_experts_per_tok": 2},
        **{"moe_intermediate_size": 32, "norm_topk_prob": True, "head_dim": 32, "sliding_window": None, "use_sliding_window": False},
        **{"use_qk_norm": True, "qkv_bias": False, "shared_expert_intermediate_size": 0, "max_window_layers": 28},
    },
    "Gemma 2": {
        **{"model_type": "gemma2", "cache_implementation": "hybrid", "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
        **{"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "head_dim": 256},
        **{"sliding_window": 4096, "sliding_window_size": 4096},
    },
    "Gemma 3": {
        **{"model_type": "gemma3_text", "attn_logit_softcapping": None, "final_logit_softcapping": None, "sliding_window_pattern": 6},
        **{
            "query_pre_attn_scalar": 256,
            "rope_local_base_freq": 10000,
            "sliding_window": 512,
            "_sliding_window_pattern": 6,
            "head_dim": 256,
        },
        **{"use_bidirectional_attention": False, "rope_scaling": None},
    },
    "Phi 4 mini": {
        **{"model_type": "phi3", "auto_map": {"AutoConfig": "x.y"}, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "full_attn_mod": 1},
        **{"interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False, "original_max_position_embeddings": 4096},
        **{"partial_rotary_factor": 0.75, "sliding_window": 262144, "hidden_act": "silu"},
        "rope_scaling": {"type": "longrope", "long_factor": [1.5] * 12, "short_factor": [1.0] * 12},
    },
    "OLMo 3": {
        **{
            "model_type": "olmo3",
            "sliding_window": 64,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "hidden_act": "silu",
        },
        "rope_scaling": {
            **{"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0},
            "original_max_position_embeddings": 512,
        },
    },
    "OLMoE": {"model_type": "olmoe", "clip_qkv": None, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": False},
    "Devstral 2": {
        **{"model_type": "ministral3", "head_dim": 32, "hidden_act": "silu", "sliding_window": None, "tie_word_embeddings": False},
        "rope_parameters": {
            **{"rope_type": "yarn", "type": "yarn", "rope_theta": 1000000.0, "factor": 64.0, "original_max_position_embeddings": 4096},
            **{"beta_fast": 4.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0, "llama_4_scaling_beta": 0.0},
        },
    },
    "StarCoder2": {  # and the keys that its 15B has beside
        **{"model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "use_bias": True, "sliding_window": 4096},
        **{"residual_dropout": 0.1, "embedding_dropout": 0.1, "mlp_type": "default", "norm_type": "layer_norm"},
    },
    "SmolLM3": {
        **{"model_type": "smollm3", "max_window_layers": 28, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0]},
        **{
            "layer_types": ["full_attention"] * 4,
            "sliding_window": None,
            "use_sliding_window": False,
            "mlp_bias": False,
            "pretraining_tp": 2,
        },
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_understood(name: str) -> None:
    outline = read_outline({**SIZES, **COMMON, **PUBLISHED[name]})
    assert (outline.layers, outline.vocab) == (4, 100)
