"""Record what transformers computes in float32 with tiny random models of its own classes: the answers that ours must give.

Needs torch and transformers, which the project itself does not: run it in an environment of its own.

    pip install torch==2.13.0 transformers safetensors numpy
    python -m bench.quality.record_transformers            all models
    python -m bench.quality.record_transformers gemma2     some of them, the others as they were

Sizes are odd on purpose: heads that are not hidden / heads wide, windows shorter than the prompt, heads that are rotated in part, hidden
sizes that are a multiple of 32 and not of 64, more experts than rows in a step. The seed is the first one whose greedy text leads by
``CLEAR`` everywhere, so that rounding decides nothing, and does not turn in a small circle.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from tests.reference.transformers_tiny import ANSWERS, EVERY, GREEDY, MODELS, PROMPT, TinyModel, random_prompt

CLEAR = 0.006
"""The likeliest token's lead, in log-probability: more than two answers that agree with ours can be apart."""
KINDS = 20
"""Different tokens that a greedy text has at least: one token again and again would not see where it stands."""

COMMON: dict[str, Any] = {"num_hidden_layers": 3, "vocab_size": 277, "max_position_embeddings": 2048}
COMMON |= {"tie_word_embeddings": False, "bos_token_id": 263, "eos_token_id": 263, "pad_token_id": None}
LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0}
GRANITE = {"attention_multiplier": 0.11, "embedding_multiplier": 1.7, "residual_multiplier": 0.4, "logits_scaling": 0.7}
MSCALE = {"rope_theta": 1000000.0, "mscale": 1.0, "mscale_all_dim": 0.7, "llama_4_scaling_beta": 0.4}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}


def sizes(hidden: int, heads: int, kv_heads: int, ffn: int, head_dim: int = 0) -> dict[str, Any]:
    found = {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": ffn}
    return {**found, "head_dim": head_dim} if head_dim else found


def longrope(pairs: int) -> dict[str, Any]:
    return {**LONG, "short_factor": [1 + i / pairs for i in range(pairs)], "long_factor": [1 + 3.0 * i for i in range(pairs)]}


CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**sizes(160, 5, 1, 352), "rope_parameters": {**LLAMA_3, "rope_theta": 500000.0}}),
    "llama-tied": ("llama", {**sizes(96, 3, 3, 224), "tie_word_embeddings": True}),
    "mistral": ("mistral", {**sizes(160, 5, 1, 352), "sliding_window": 24}),
    "mistral-nemo": ("mistral", {**sizes(160, 6, 2, 224, 48), "sliding_window": None}),
    "mixtral": ("mixtral", {**sizes(96, 3, 3, 96), "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2": ("qwen2", {**sizes(224, 7, 1, 352), "tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3": ("qwen3", {**sizes(96, 5, 1, 352, 64), "tie_word_embeddings": True}),
    "qwen3_moe": (
        "qwen3_moe",
        {**sizes(160, 3, 1, 96, 64), "num_experts": 40, "num_experts_per_tok": 4, "moe_intermediate_size": 32, "norm_topk_prob": True},
    ),
    "gemma": ("gemma", {**sizes(96, 4, 2, 224, 48), "tie_word_embeddings": True}),
    "gemma2": (
        "gemma2",
        {**sizes(160, 4, 2, 224, 48), "tie_word_embeddings": True, "sliding_window": 9, "query_pre_attn_scalar": 48, **CAPS},
    ),
    "gemma3_text": (
        "gemma3_text",
        {
            **sizes(96, 3, 1, 224, 64), "num_hidden_layers": 7, "tie_word_embeddings": True, "sliding_window": 21,
            "query_pre_attn_scalar": 64,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "phi3": ("phi3", {**sizes(160, 5, 5, 224)}),
    "phi4": (
        "phi3",
        {**sizes(192, 3, 1, 224), "tie_word_embeddings": True, "original_max_position_embeddings": 64, "rope_parameters": longrope(24)},
    ),
    "granite": ("granite", {**sizes(160, 5, 1, 224), "tie_word_embeddings": True, **GRANITE}),
    "granitemoe": ("granitemoe", {**sizes(160, 5, 1, 96), "num_local_experts": 5, "num_experts_per_tok": 2, **GRANITE}),
    "granitemoeshared": (
        "granitemoeshared",
        {**sizes(160, 5, 1, 96), "num_local_experts": 9, "num_experts_per_tok": 3, "shared_intermediate_size": 160, **GRANITE},
    ),
    "olmo2": ("olmo2", {**sizes(96, 3, 3, 224), "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    "olmo3": (
        "olmo3",
        {
            **sizes(160, 5, 5, 224), "num_hidden_layers": 5, "sliding_window": 40,
            "rope_parameters": {
                "full_attention": {**YARN, "rope_theta": 500000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
            },
        },
    ),
    "olmoe": ("olmoe", {**sizes(96, 3, 3, 64), "num_experts": 9, "num_experts_per_tok": 3, "norm_topk_prob": False}),
    "gpt_oss": (
        "gpt_oss",
        {
            **sizes(96, 4, 2, 64, 48), "num_local_experts": 7, "num_experts_per_tok": 3, "sliding_window": 17,
            "rope_parameters": {**YARN, "rope_theta": 150000.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        },
    ),
    "ministral3": ("ministral3", {**sizes(96, 4, 2, 224, 48), "rope_parameters": {**YARN, **MSCALE}}),
    "starcoder2": ("starcoder2", {**sizes(160, 5, 1, 352), "tie_word_embeddings": True, "sliding_window": 31}),
    "seed_oss": ("seed_oss", {**sizes(96, 4, 2, 224, 48), "attention_bias": True, "attention_out_bias": False}),
    "smollm3": ("smollm3", {**sizes(96, 3, 1, 224), "num_hidden_layers": 5, "tie_word_embeddings": True}),
}  # fmt: skip
"""Of each model: the config's ``model_type`` and what it says beyond ``COMMON``."""


def record(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model's entry of the record, and its answers."""
    kind, settings = CONFIGS[name]
    epsilon = "norm_epsilon" if kind == "starcoder2" else "rms_norm_eps"
    config = transformers.AutoConfig.for_model(kind, **{**COMMON, epsilon: 1e-5, **settings})
    config.save_pretrained(folder)
    blank = transformers.AutoModelForCausalLM.from_config(config)
    blank.save_pretrained(folder)
    with safe_open(folder / "model.safetensors", framework="np") as saved:
        shapes = {key: tuple(saved.get_slice(key).get_shape()) for key in sorted(saved.keys())}
    said = json.loads((folder / "config.json").read_text())
    said = {key: value for key, value in said.items() if key not in ("transformers_version", "dtype")}
    for seed in count(1):
        tiny = TinyModel(name, said, shapes, seed)
        if found := answers(tiny, folder):
            break
    kinds, spread = len(set(found["tokens"][PROMPT:])), float(found["rows"].std())
    print(f"{name:18} seed {seed:2}  spread of log-probabilities {spread:.1f}  different tokens {kinds}", flush=True)
    return {"seed": seed, "config": said, "shapes": shapes}, found


def answers(tiny: TinyModel, folder: Path) -> dict[str, Any]:
    """What the model says after its own greedy tokens; nothing if two of them are too close, or all of them too much alike."""
    tiny.write(folder)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    ids = torch.tensor(random_prompt(tiny.config["vocab_size"]).astype(np.int64))[None]
    with torch.no_grad():
        step = model(ids, use_cache=True)
        for _ in range(GREEDY):
            best = step.logits[0, -1].topk(2)
            if best.values[0] - best.values[1] < CLEAR:
                return {}
            ids = torch.cat([ids, best.indices[None, :1]], dim=1)
            step = model(best.indices[None, :1], past_key_values=step.past_key_values, use_cache=True)
        whole = torch.log_softmax(model(ids, use_cache=False).logits[0].double(), -1).numpy()
    tokens = ids[0].numpy()
    asked = whole[PROMPT - 1 : -1]
    if (asked.argmax(-1) != tokens[PROMPT:]).any():
        raise SystemExit(f"{tiny.name}: what is cached is not what is computed at once")
    chosen = asked[np.arange(GREEDY), tokens[PROMPT:]]
    found = {"tokens": tokens.astype(np.int16), "chosen": chosen.astype(np.float32), "rows": whole[::EVERY].astype(np.float32)}
    return found if len(set(tokens[PROMPT:])) >= KINDS else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of " + ", ".join(CONFIGS))
    wanted = parser.parse_args().models or list(CONFIGS)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    entries: dict[str, Any] = json.loads(MODELS.read_text())["models"] if MODELS.exists() else {}
    arrays: dict[str, Any] = {}
    if ANSWERS.exists():
        with np.load(ANSWERS) as before:
            arrays = {key: before[key] for key in before.files}
    for name in wanted:
        with tempfile.TemporaryDirectory() as folder:
            entries[name], found = record(name, Path(folder))
        arrays |= {f"{name}.{key}": value for key, value in found.items()}
        keep(entries, arrays)
    print(f"{ANSWERS.stat().st_size + MODELS.stat().st_size} bytes", file=sys.stderr)


def keep(entries: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Write the record, in the order of ``CONFIGS``."""
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entries[name])}" for name in CONFIGS if name in entries)
    MODELS.write_text(f'{{"versions": {json.dumps(versions)},\n"models": {{\n{lines}\n}}}}\n')
    np.savez_compressed(ANSWERS, **{key: value for key, value in arrays.items() if key.rpartition(".")[0] in CONFIGS})


if __name__ == "__main__":
    main()
